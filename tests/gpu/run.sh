#!/usr/bin/env bash
# All that has to run on an NVIDIA GPU, in parts, several GPUs side by side:
#
#     bash tests/gpu/run.sh OUT "0: overhead formats" "1: cheats" "2: campaign=gemm campaign=fused-moe" "3: precision=60"
#
# Parts: overhead, cheats, surroundings, formats, mutants, calibration, diagnosis, doctor, templates, precision=N (N
# unchanged kernels a size, and a third as many planted gains), numerics=SECONDS (a kernel), campaign=NAME,
# compare=PROBLEM (a folder or a test of skills/kernels). PYTHON names the interpreter (python3). Each part writes below
# OUT and prints a line when it ends.
#
# With COVERAGE_PROCESS_START=pyproject.toml all of them write down in .coverage.d which lines they ran, if PYTHON has
# coverage and finds `tests.covering` from any folder (as `make install` leaves it), and `coverage run` was used once.
set -uo pipefail
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out"
gpus=$(nvidia-smi -L | wc -l)
share=$(($(nproc) / (gpus > 0 ? gpus : 1)))

templates() {
    local problem kernel
    for problem in skills/kernels/*/test_*.py; do
        kernel=$(dirname "$problem")/triton_template.py
        case $problem in *_backward.py) kernel=$(dirname "$problem")/triton_backward_template.py ;; esac
        "$python" -m kopt_mcp evaluate "$kernel" --problem "$problem" --device cuda:0 --json | tail -1 >"$out/template-$(basename "$problem" .py).json"
        echo "$problem: exit ${PIPESTATUS[0]}"
    done
}

part() {
    case $1 in
        overhead)
            "$python" experiments/overhead/iteration.py --device cuda:0 --iterations 10 --out "$out/overhead"
            "$python" experiments/overhead/iteration.py --device cuda:0 --iterations 10 --out "$out/overhead-5" \
                --workloads 8192x8192-bf16 32768x4096-bf16 128x1024-bf16 37x1021-fp32 9x513-fp16
            ;;
        cheats) "$python" tests/gpu/test_gpu_cheats.py "$out/cheats.json" ;;
        surroundings) "$python" tests/gpu/test_gpu_surroundings.py ;;
        formats) "$python" tests/gpu/test_gpu_formats.py "$out/formats.json" ;;
        mutants) "$python" tests/gpu/mutants.py ;;
        numerics=*) "$python" tests/gpu/numerics.py cuda:0 "${1#*=}" ;;
        calibration) "$python" experiments/precision/calibration.py --out "$out/calibration" ;;
        diagnosis) "$python" tests/gpu/diagnosis.py "$out/diagnosis" ;;
        doctor) "$python" -m kopt_mcp doctor ;;
        templates) templates ;;
        precision=*) "$python" experiments/precision/run.py --device cuda:0 --same "${1#*=}" --planted "$((${1#*=} / 3))" --out "$out/precision-$2" ;;
        campaign=*) "$python" experiments/campaigns/run.py "$out/campaigns" "${1#*=}" --gpus "$2" ;;
        compare=*) "$python" experiments/compare.py "$out/kernels" "${1#*=}" --gpus "$2" ;;
        *) echo "no such part; see the head of tests/gpu/run.sh" && return 2 ;;
    esac
}

on() {
    local gpu=${1%%:*} name begun
    # These two choose among all GPUs themselves.
    for name in ${1#*:}; do
        begun=$SECONDS
        case $name in
            campaign=* | compare=*) part "$name" "$gpu" ;;
            *) CUDA_VISIBLE_DEVICES=$gpu taskset -c "$((gpu * share))-$(((gpu + 1) * share - 1))" bash -c "$(declare -f part templates); python=$python out=$out; part $name $gpu" ;;
        esac >"$out/gpu$gpu-${name//[=\/]/-}.log" 2>&1
        echo "gpu $gpu, $name: exit $?, $((SECONDS - begun)) s"
    done
}

for jobs in "$@"; do
    on "$jobs" &
done
wait
