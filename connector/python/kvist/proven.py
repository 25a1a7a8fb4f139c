"""Which versions of an engine a connector was tried with. Engines change what their calls mean without changing their names."""


def refuse_others(engine: str, seen: str, proven: tuple[str, ...], setting: str) -> None:
    """Raises ValueError for a version `seen` that neither is one of `proven` ("0.32") nor continues one ("0.32.1", "0.32.0+cpu").

    setting: what a user sets to start all the same, as they write it.
    """
    if any(seen == version or seen.startswith((f"{version}.", f"{version}+", f"{version}rc")) for version in proven):
        return
    raise ValueError(
        f"kvist was tried with {engine} {', '.join(proven)}; this is {seen}. Install that one, or set {setting} to true to try this one: "
        "what it changed may cost requests, or give them wrong KV"
    )
