"""Side-by-side benchmark of gflow and its peers: same machine, same questions, same clock.

    bench      the command line: rounds, order, results
    trials     the questions, one function each
    systems    what a trial may ask of a system
    ours       the adapter of this repository's gflow
    runqd      the adapters of gflow in Rust
    spooler    the adapter of task-spooler
    hq         the adapter of HyperQueue
    slurm      the adapter of Slurm
    measure    clocks, samples, processes
    report     the tables

Standard library only. Start it with `benchmarks/run`, which installs all systems first.
"""
