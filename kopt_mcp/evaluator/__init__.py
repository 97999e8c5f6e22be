"""The evaluator: a trusted harness, an untrusted runner, and the client that the server uses.

Everything here but `client` needs the standard library and torch only, so that it runs under the user's own
interpreter. Read in this order; each module's first sentence says what it is about.

In the server:          client, records, strictness; reported, script_report, script_run, shut_in for scripts that judge
                        themselves
The harness's way:      serving, harness, preparing; verify, then bench; files, own_files, machine, spent, faults
What is checked:        checks, inputs, generated, reference, compare, limits, ceilings, mutants
How it is timed:        arms; held (the harness's clock, on a CPU) with turns, cores and snapshots; claimed (the
                        runner's, on a GPU) with timing, and against lies there: audit, pairs, known, gate, passage,
                        line, queueing (the harness's clock again), sealing, seals, peeking, loops (the runner watched)
A runner from outside:  runners, process, zygote, forked, sandbox, system_calls, channel, answers, shared, on_device,
                        caches, clearing, binary, trivial
A runner from inside:   runner, candidate, loading, native, watching, lying, outbox, operators
The device:             device_state, nvml
Beside the loop:        script (a problem file's own command), target, target_job (what is profiled)
"""
