"""What the backend did, in the form SGLang's metrics take."""

import threading
from typing import Any

# What `Stats.totals` has, of one rank.
TOTALS = {
    "pages_asked": "pages that were looked up",
    "pages_found": "pages that were there",
    "pages_loaded": "pages copied from kvistd",
    "pages_stored": "pages copied to kvistd, or known there already",
    "pages_refused": "pages that kvistd didn't take: away, late, or full",
}
CALLS_WITHOUT_KVISTD = "calls_without_kvistd"


class Stats:
    """Pages and rates of each copying call since they were last asked for, and totals. Any thread."""

    # A call's worth each; when nobody asks, the oldest are of no use.
    _CALLS_MOST = 1024

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: list[tuple[int, float]] = []
        self._written: list[tuple[int, float]] = []
        self.totals = dict.fromkeys(TOTALS, 0)

    def asked(self, pages: int, found: int) -> None:
        with self._lock:
            self.totals["pages_asked"] += pages
            self.totals["pages_found"] += found

    def loaded(self, pages: int, page_bytes: int, seconds: float) -> None:
        with self._lock:
            self.totals["pages_loaded"] += pages
            self._note(self._read, pages, page_bytes, seconds)

    def stored(self, pages: int, refused: int, page_bytes: int, seconds: float) -> None:
        with self._lock:
            self.totals["pages_stored"] += pages
            self.totals["pages_refused"] += refused
            self._note(self._written, pages, page_bytes, seconds)

    def _note(self, calls: list[tuple[int, float]], pages: int, page_bytes: int, seconds: float) -> None:
        if pages > 0 and len(calls) < self._CALLS_MOST:
            calls.append((pages, pages * page_bytes / max(seconds, 1e-9) / 1e9))  # GB/s, as SGLang's other backends say it

    def take(self) -> Any | None:
        """A StorageMetrics of what came since the last call; None where this SGLang has none."""
        try:
            from sglang.srt.observability.metrics_collector import StorageMetrics
        except ImportError:
            try:
                from sglang.srt.metrics.collector import StorageMetrics
            except ImportError:
                return None
        with self._lock:
            read, self._read = self._read, []
            written, self._written = self._written, []
        metrics = StorageMetrics()
        metrics.prefetch_pgs.extend(pages for pages, _ in read)
        metrics.prefetch_bandwidth.extend(rate for _, rate in read)
        metrics.backup_pgs.extend(pages for pages, _ in written)
        metrics.backup_bandwidth.extend(rate for _, rate in written)
        return metrics
