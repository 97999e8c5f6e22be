"""The report: what it reads off a journal, what its two charts say, and that nothing hostile gets through its page."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import fakes
import pytest
from fakes import Project

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

from kopt_mcp.__main__ import main
from kopt_mcp.errors import GuardRefused, JournalCorrupt
from kopt_mcp.evaluator.records import Ratio
from kopt_mcp.report import drawing, limits, progress, roofline
from kopt_mcp.report.diffs import change
from kopt_mcp.report.page import page
from kopt_mcp.report.reading import Told, headline, interval, named, read
from kopt_mcp.stats import UNKNOWN_HIGH

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = (
    "$\\frac{1}{ </td></title></script><script>alert(1)</script><img src=x onerror=alert(2)>\" ' \\1 & {{ 7*7 }} \u202e"
)
"""Would end an element, an attribute, a pattern of re.sub, a formula or a template, wherever one was not escaped."""


@pytest.fixture(scope="module")
def real() -> Told:
    """A run on an H200, with a wrong kernel and an idle change on the way."""
    return read(ROOT, "softmax-h200-2")


def told(project: Project, name: str) -> Told:
    return read(project.root, name)


class Elements(HTMLParser):
    """Every element of a document with its attributes, and every text outside style elements."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_every_try_is_told_with_its_fate_its_value_and_its_interval(real: Told) -> None:
    assert [(t.iteration, t.fate) for t in real.tries] == [
        (0, "baseline"),
        (1, "failed"),
        (2, "kept"),
        (3, "reverted"),
        (4, "kept"),
    ]
    wrong, kept = real.tries[1], real.tries[2]
    assert (wrong.value, wrong.why) == (None, "INCORRECT_NUMERICAL")
    assert kept.value == pytest.approx(2582.7, abs=0.1)
    assert kept.gain_pct == pytest.approx(47.45, abs=0.01)
    # 2582.7 GB/s at a ratio of 1.47455 [1.47231, 1.47540]
    assert (kept.low, kept.high) == pytest.approx((2578.8, 2584.2), abs=0.1)


def test_of_times_the_worse_end_of_the_interval_is_the_longer_time() -> None:
    ratio = Ratio(2.0, 1.6, 2.5, 5)
    assert interval("gbps", 100.0, ratio) == (80.0, 125.0)
    assert interval("latency_us", 100.0, ratio) == (125.0, 80.0)


@pytest.mark.parametrize("ratio", [None, Ratio(2.0, 0.0, UNKNOWN_HIGH, 1)])
def test_an_interval_that_is_not_known_is_not_drawn(ratio: Ratio | None) -> None:
    assert interval("gbps", 100.0, ratio) == (None, None)


def test_a_diagnosis_is_told_with_the_iterations_that_were_tried_while_it_stood(real: Told) -> None:
    assert [d.iterations for d in real.diagnoses] == [(1, 2), (3, 4)]
    assert [d.made.diagnosis.bound for d in real.diagnoses] == ["memory", "memory"]
    assert all(d.profile is not None and d.profile.profile.rung == "timing" for d in real.diagnoses)


def test_a_target_is_only_called_met_when_a_cold_process_agreed(project: Project) -> None:
    name = project.baseline(target_value=150, max_iterations=1).experiment
    assert headline(told(project, name).state) == "Running: ready"
    project.iterate(name, fakes.kernel(2.0, COLD=1.0))
    assert headline(told(project, name).state).startswith("Target not met (iterations used up)")
    other = project.baseline(target_value=150).experiment
    project.iterate(other, fakes.kernel(2.2))
    assert headline(told(project, other).state) == "Target met, confirmed in a cold process"


def test_the_experiment_that_grew_last_is_meant_when_none_is_named(project: Project) -> None:
    with pytest.raises(GuardRefused, match="has no experiment"):
        named(project.root, None)
    first = project.baseline().experiment
    second = project.baseline().experiment
    assert named(project.root, None) == second
    project.loop.diagnose(first)
    assert named(project.root, None) == first
    with pytest.raises(GuardRefused, match="'nope' is not known"):
        named(project.root, "nope")


def test_no_report_is_made_of_a_journal_that_does_not_verify(project: Project) -> None:
    name = project.diagnosed()
    path = project.root / "experiments" / name / "journal.jsonl"
    path.write_text(path.read_text().replace("memory-bound", "compute-bound"))
    project.loop = project.reopened()
    with path.open("a") as file:
        file.write("{}\n")
    with pytest.raises(JournalCorrupt):
        read(project.root, name)


def test_the_progress_chart_names_values_gains_target_and_roof(real: Told) -> None:
    texts = drawing.texts(progress.progress(real))
    for text in ("1749 GBps", "2583\n+47.5 %", "2576\n±0.0 %", "4203\n+62.8 %", "wrong"):
        assert text in texts
    assert {"target\n3800 GBps", "measured roof\n4251 GBps", "baseline", "kept", "taken back"} <= set(texts)


def test_the_target_and_the_roof_are_named_apart_however_near_they_lie(project: Project) -> None:
    name = project.baseline(target_value=999).experiment
    figure = progress.progress(told(project, name))
    drawing.to_png(figure)
    boxes = [t.get_window_extent() for t in figure.axes[0].texts if t.get_text().startswith(("target", "measured"))]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])


def test_a_long_experiment_names_only_its_ends_in_the_chart(project: Project) -> None:
    name = project.baseline(max_iterations=30, target_value=900).experiment
    for step in range(15):
        project.iterate(name, fakes.kernel(1.1 + 0.1 * step), hypothesis=f"step {step}")
    texts = drawing.texts(progress.progress(told(project, name)))
    assert [t for t in texts if " %" in t and "interval" not in t] == ["250\n+4.2 %"]


def test_the_roofline_holds_each_timed_workload_below_the_measured_roof(real: Told) -> None:
    (point,) = limits.points(real.state)
    assert point.intensity == pytest.approx(1.25)  # 5 operations for each element of 2 bytes read and 2 written
    assert point.after == pytest.approx(671088640 / 127.728 / 1e6)
    assert point.roof == pytest.approx(4.2509 * 1.25, rel=1e-3)
    assert point.share == pytest.approx(0.989, abs=1e-3)
    texts = drawing.texts(roofline.roofline(real.state))
    assert "memory: 4,251 GB/s measured, 4,800 nominal" in texts
    assert "bf16: 784 TFLOP/s measured, 989 nominal" in texts


def test_workloads_of_several_types_have_a_level_each_and_close_ones_one_name() -> None:
    texts = drawing.texts(roofline.roofline(read(ROOT, "softmax-h200-1").state))
    assert "bf16, fp16: 799, 769 TFLOP/s measured, 989 nominal" in texts
    assert "fp32: 51.3 TFLOP/s measured, 67 nominal" in texts


def test_where_no_roofline_can_be_drawn_the_reason_is_given(project: Project) -> None:
    name = project.baseline().experiment
    state = told(project, name).state
    assert limits.why_not(state) == ""
    bare = state.setup.device.model_copy(update={"measured_gbps": None, "measured_tflops": {}})
    unknown = state.model_copy(update={"setup": state.setup.model_copy(update={"device": bare})})
    assert limits.why_not(unknown).startswith("No limit of this device is known")
    uncounted = state.setup.model_copy(
        update={"measurement": state.setup.measurement.model_copy(update={"timings": {}})}
    )
    assert limits.why_not(state.model_copy(update={"setup": uncounted})).startswith("The problem counts no operations")


def test_a_drawing_takes_its_colours_and_its_font_from_the_page(real: Told) -> None:
    svg = drawing.to_svg(progress.progress(real), "progress", 'a "label" <b>', {"try-0": "</title><script>"})
    assert not re.search(r"#[0-9a-f]{6}", svg.lower())
    assert 'aria-label="a &quot;label&quot; &lt;b&gt;"' in svg
    assert '<g id="progress-try-0"><title>&lt;/title&gt;&lt;script&gt;</title>' in svg
    assert {"var(--kept)", "var(--failed)", "var(--target)", "var(--roof)", "var(--surface)"} <= set(
        re.findall(r"var\(--\w+\)", svg)
    )


def test_the_same_journal_gives_the_same_page_and_the_same_pictures(real: Told) -> None:
    assert page(real) == page(read(ROOT, "softmax-h200-2"))
    assert drawing.to_png(progress.progress(real)) == drawing.to_png(progress.progress(real))


def test_the_page_needs_nothing_but_itself_and_names_each_thing_once(real: Told) -> None:
    document = page(real)
    elements = Elements(document).found
    loaded = [(tag, a) for tag, a in elements if tag in ("script", "img", "iframe", "object", "embed", "link", "base")]
    assert [a for _, a in loaded] == [{"rel": "icon", "href": "data:,"}]
    targets = [a.get("href") or a.get("xlink:href") or "" for tag, a in elements if tag in ("a", "use")]
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert {t[1:] for t in targets} <= set(ids)
    policy = next(a["content"] for _, a in elements if a.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    assert "url(http" not in document
    assert "@import" not in document


def test_the_page_tells_the_log_the_diff_the_reasons_and_the_environment(real: Told) -> None:
    text = " ".join(" ".join(Elements(page(real)).texts).split())
    for said in (
        "A row index in 32 bits saves the 64-bit multiplications of the row's addresses.",
        "320 of 7175 elements beyond the allowed error; the worst by a factor 2.59 at [5, 564]",
        "between -0.4% and +0.1%, which does not clear the bar of +1.0%",
        "exp = tl.exp(x - tl.max(x, axis=0))",
        "memory_roof_pct 60.76 60 Nsight Compute rule SOLBottleneck",
        "Wrong kernels caught 10 of 10 that were tried on the problem",
        "device copy, NVIDIA H200, torch 2.11.0+cu130, 2026-11-29",
        "20 events, each holding the hash of the line before",
        "Final: 4203 GBps (98.9% of peak), 4 iterations, target met; on 1 of ",
    ):
        assert said in text


def hostile_experiment(project: Project) -> str:
    """Hostile text wherever an agent, a kernel, a problem or a driver can put some."""
    workloads = [fakes.WORKLOADS[0].__class__(HOSTILE, "float32", True, fakes.BYTES, 5e7)]
    problem = fakes.PROBLEM.__class__(HOSTILE, "softmax", "memory", tuple(workloads))
    project.evaluator.problem = problem
    project.devices = [fakes.GPU.model_copy(update={"name": f"GPU {HOSTILE}", "notes": [HOSTILE]})]
    name = project.baseline(max_iterations=9).experiment
    project.iterate(name, fakes.kernel(1.5, f"return x  # {HOSTILE!r}"), hypothesis=HOSTILE)
    project.iterate(
        name, fakes.kernel(9.0, f"# {HOSTILE!r}\n    return x", VERIFY="RUNTIME_ERROR"), hypothesis=HOSTILE[::-1]
    )
    with pytest.raises(GuardRefused):
        project.loop.verify(name)
    project.loop.decide(name, stop=True, reason=HOSTILE)
    return name


def test_nothing_that_an_agent_a_kernel_or_a_problem_says_becomes_markup(project: Project) -> None:
    harmless = Elements(page(read(ROOT, "softmax-h200-2"))).found
    document = page(told(project, hostile_experiment(project)))
    found = Elements(document)
    assert {tag for tag, _ in found.found} <= {tag for tag, _ in harmless} | {"ul", "li", "strong"}
    assert not [a for _, attributes in found.found for a in attributes if a.startswith("on")]
    assert document.count("<script") == 0
    assert "\u202e" not in document
    shown = "".join(found.texts)
    assert "<img src=x onerror=alert(2)>" in shown
    assert "{{ 7*7 }}" in shown
    assert "<U+202E>" in shown


def test_hostile_names_are_drawn_as_they_are_written(project: Project) -> None:
    state = told(project, hostile_experiment(project))
    texts = drawing.texts(progress.progress(state))
    assert any("$\\frac{1}{" in text for text in texts)
    assert drawing.to_png(progress.progress(state)).startswith(b"\x89PNG")
    assert drawing.to_png(roofline.roofline(state.state)).startswith(b"\x89PNG")


def test_an_experiment_that_has_only_begun_has_a_page(project: Project) -> None:
    name = project.baseline().experiment
    text = "".join(Elements(page(told(project, name))).texts)
    for said in ("Running: ready", "No change was tried yet.", "Nothing was diagnosed yet."):
        assert said in text


def test_an_open_iteration_is_told_as_open(project: Project) -> None:
    name = project.diagnosed()
    project.patch(name, fakes.kernel(1.5))
    seen = told(project, name)
    assert [t.fate for t in seen.tries] == ["baseline", "open"]
    assert "Not decided yet." in page(seen)


def test_a_version_that_was_edited_or_is_gone_is_said_to_be_so_instead_of_a_diff(project: Project) -> None:
    name = project.baseline().experiment
    project.iterate(name, fakes.kernel(1.5))
    project.iterate(name, fakes.kernel(1.7))
    versions = project.root / "experiments" / name / "candidates"
    newest = told(project, name).state.current
    (versions / f"{newest[:12]}.py").write_text("something else")
    assert "was edited" in told(project, name).changes[2].why_not
    shutil.rmtree(versions)
    assert "cannot be read" in told(project, name).changes[1].why_not
    assert "cannot be read" in page(told(project, name))


def test_a_diff_numbers_each_line_in_the_version_that_it_belongs_to() -> None:
    before = "\n".join(f"line {n}" for n in range(1, 21))
    after = before.replace("line 2\n", "").replace("line 18", "line eighteen")
    lines = change(before, after).lines
    assert [(x.number, x.text) for x in lines if x.kind == "removed"] == [(2, "line 2"), (18, "line 18")]
    assert [(x.number, x.text) for x in lines if x.kind == "added"] == [(17, "line eighteen")]
    assert [x.kind for x in lines].count("gap") == 1
    assert change(before, before).why_not == "The two versions have the same lines."
    assert "more than 3000 lines" in change("\n" * 4000, "").why_not


def test_the_command_writes_page_and_charts_and_names_them(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    name = project.baseline().experiment
    assert main(["--root", str(project.root), "report", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    folder = project.root / "experiments" / name
    assert said == {
        "experiment": name,
        "files": [str(folder / f) for f in ("report.html", "progress.png", "roofline.png")],
    }
    assert [Path(f).read_bytes()[:4] for f in said["files"]] == [b"<!DO", b"\x89PNG", b"\x89PNG"]
    assert main(["--root", str(project.root), "report", name, "--out", str(project.root / "out" / "x.html")]) == 0
    assert (project.root / "out" / "progress.png").is_file()
    assert f"{name}: Running: ready" in capsys.readouterr().out


def test_the_command_prints_one_part_and_writes_nothing(
    project: Project, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    name = project.baseline().experiment
    before = sorted(project.root.rglob("*"))
    assert main(["--root", str(project.root), "report", name, "--print", "progress"]) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out.startswith(b"\x89PNG")
    assert sorted(project.root.rglob("*")) == before


def test_the_command_refuses_an_experiment_that_is_not_there(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.baseline()
    assert main(["--root", str(project.root), "report", "nope"]) == 1
    assert "experiment 'nope' is not known; there are softmax-h200-1" in capsys.readouterr().err


def test_without_the_extra_the_command_says_which_line_installs_it() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from kopt_mcp.__main__ import main; "
        f"sys.exit(main(['--root', {str(ROOT)!r}, 'report', 'softmax-h200-2']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "'matplotlib' is not installed here; install both with `pip install 'kopt-mcp[report]'`" in done.stderr


def test_the_server_and_the_command_line_load_nothing_that_draws() -> None:
    code = "import sys, kopt_mcp.__main__, kopt_mcp.server; print({'matplotlib', 'numpy', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_of_times_a_failure_is_marked_at_the_slow_edge_and_never_looks_fast(project: Project) -> None:
    name = project.baseline(target_metric="latency_us", target_value=200).experiment
    project.iterate(name, fakes.kernel(9.0, VERIFY="INCORRECT_NUMERICAL"))
    project.iterate(name, fakes.kernel(1.5))
    figure = progress.progress(told(project, name))
    at = {str(line.get_gid()): line.get_ydata()[0] for line in figure.axes[0].get_lines() if line.get_gid()}
    assert at["try-1"] > at["try-0"] == pytest.approx(1000)
    assert at["try-2"] == pytest.approx(666.67, abs=0.01)


def test_times_that_a_script_reported_are_never_shown_as_measured(project: Project) -> None:
    name = project.baseline().experiment
    seen = told(project, name)
    setup = seen.state.setup.model_copy(update={"trust": "reported"})
    taken = dataclasses.replace(seen, state=seen.state.model_copy(update={"setup": setup}))
    assert "nothing here was measured by kopt-mcp" in page(taken)
    assert "nothing here was measured by kopt-mcp" not in page(seen)
    assert any("as the project's own script reported them" in t for t in drawing.texts(progress.progress(taken)))
    assert any(t.startswith("caches cold; bars") for t in drawing.texts(progress.progress(seen)))


def test_a_journal_of_an_earlier_release_has_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "experiments" / "softmax-h200-1"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "journals" / "0.1-softmax.jsonl", folder / "journal.jsonl")
    text = "".join(Elements(page(read(tmp_path, "softmax-h200-1"))).texts)
    assert "Final:" in text
    assert "cannot be read" in text  # its candidates are not kept beside it
