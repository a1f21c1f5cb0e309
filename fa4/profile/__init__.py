"""Per-role views of a kernel: static counts of its code, timelines of its waits, samples of ncu."""


def inspect_main(argv: list[str]) -> int:
    """`fa4 inspect`; see `fa4.profile.inspect`."""
    from fa4.profile.inspect import inspect_main as run  # the compiler takes seconds to import

    return run(argv)


def profile_main(argv: list[str]) -> int:
    """`fa4 profile`; see `fa4.profile.command`."""
    from fa4.profile.command import profile_main as run

    return run(argv)
