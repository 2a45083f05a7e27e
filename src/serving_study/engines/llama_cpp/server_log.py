def _no(*a, **k): return {}
phase = lambda log: "other"
start_figures = failure_figures = settings = _no
cause = lambda log, exit_code=None: None
