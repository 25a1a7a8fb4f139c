"""Sliding windows: what one has left behind is handed out with the next step, and its store is stopped; what the step's end needs isn't lost with it."""

from scenarios import prompt
from settings import Shape


def test_what_a_window_still_has_is_stored_by_itself(daemon, ledger, start):
    engine = start(daemon, Shape(blocks=64, windows=(0, 48), chunk=16, retention=0))
    real, plans = engine.connector.build_connector_meta, []

    def recorded(output):
        plan = real(output)
        if plan.stores:
            plans.append(plan)
            if len(plans) == 1:
                daemon.pause()  # stores are under way from here on
        return plan

    engine.connector.build_connector_meta = recorded
    engine.prefill(prompt(1, 288), max_tokens=1)
    daemon.resume()
    engine.settle(ledger)
    first, second = plans[:2]
    (whole,) = [store for store in first.stores if store.group == 0]
    needed, behind = [store for store in first.stores if store.group == 1]
    assert (len(whole.pages), len(needed.pages), len(behind.pages)) == (6, 3, 3)
    assert second.stop == [behind.job]
