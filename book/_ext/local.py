"""The book's own Sphinx extension: what Jupyter Book 1 adds to every page and this book must not have.

* sphinx-thebe (always loaded) writes its script block twice, which is a JavaScript error on every page (`THEBE_JS_URL`
  is declared twice), and a Binder configuration for another repository. This book starts no remote kernel, so its
  handlers are disconnected and its files taken out of the pages.
* sphinx-mathjax-offline, without which every page with maths calls a CDN, insists on the CHTML renderer with its fonts
  (its `setup` wins over `mathjax_path` in `_config.yml`) and copies all of MathJax (24 MB). The path is set here, after
  it, to `tex-svg.js`; what neither that file nor its extensions and accessibility menu load is removed again.

Loaded by `_config.yml` (`sphinx: local_extensions`); nothing here needs the harness.
"""

import shutil
from pathlib import Path

MATHJAX_KEPT = {"tex-svg.js", "input", "a11y", "sre"}


def _choose_svg(app, config):
    config.mathjax_path = "mathjax/tex-svg.js"


def _disconnect_thebe(app, config):
    """Remove sphinx-thebe's event handlers before any of them has run; its directive stays, harmless."""
    for listeners in app.events.listeners.values():
        listeners[:] = [
            listener for listener in listeners if not listener.handler.__module__.startswith("sphinx_thebe")
        ]


def _is_thebe(asset) -> bool:
    return "thebe" in str(getattr(asset, "filename", asset) or "")


def _drop_thebe_files(app, pagename, templatename, context, doctree):
    """Take thebe's style sheet out of a page: its `setup` added that before this extension could say no."""
    for kind in ("css_files", "script_files"):
        context[kind] = [asset for asset in context.get(kind, []) if not _is_thebe(asset)]


def _prune_mathjax(app, exception):
    """Keep the parts of MathJax that a page with `tex-svg.js` can ask for."""
    folder = Path(app.outdir, "_static", "mathjax")
    if exception is None and folder.is_dir():
        for entry in folder.iterdir():
            if entry.name not in MATHJAX_KEPT:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def setup(app):
    app.connect("config-inited", _disconnect_thebe, priority=1)
    app.connect("config-inited", _choose_svg, priority=900)
    app.connect("html-page-context", _drop_thebe_files, priority=900)
    app.connect("build-finished", _prune_mathjax, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
