"""A server that stands in for LMCache's beside the fake engine: it gets up after a moment, says its settings, counts
nothing, and fails on command.

    python fake_sidecar.py --port 5555 --http-port 8080 --chunk-size 128 --fault dies-at-start

What happens is appended to JOURNAL, as by fake_engine.py; a file SWITCH that says [{"who": "sidecar", "fault": "dies"}]
ends it in the middle of a life."""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fake_engine import note, switched

FAULTS = ("dies-at-start", "silent", "port-taken", "other-settings", "ignores-term")


def handler(settings: dict):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            said = {
                "/healthcheck": b'{"status":"healthy"}',
                "/config": json.dumps(settings).encode(),
                "/metrics": b"lmcache_mp_event_bus_queue_depth 0.0\n",
            }.get(self.path)
            self.send_response(404 if said is None else 200)
            self.send_header("Content-Length", str(len(said or b"")))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(said or b"")

        def log_message(self, *_):
            pass

    return Handler


def wait_for_the_switch() -> None:
    while not switched("sidecar"):
        time.sleep(0.02)
    print("OSError: the first tier is gone", flush=True)
    os._exit(7)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--fault", choices=FAULTS)
    options = parser.parse_args()
    note("server", arm="sidecar", port=options.http_port, fault=options.fault)
    print(f"listening on {options.port} soon", flush=True)
    if options.fault == "dies-at-start":
        print("ValueError: no such eviction policy", flush=True)
        sys.exit(3)
    if options.fault == "silent":
        time.sleep(3600)
    if options.fault == "port-taken":
        print(f"OSError: [Errno 98] Address already in use: {options.port}", flush=True)
        sys.exit(1)
    if options.fault == "ignores-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    messages = socket.socket()
    messages.bind(("127.0.0.1", options.port))
    messages.listen()
    time.sleep(0.3)
    threading.Thread(target=wait_for_the_switch, daemon=True).start()
    settings = {
        "mp": {"chunk_size": 64 if options.fault == "other-settings" else options.chunk_size, "fault": options.fault}
    }
    ThreadingHTTPServer(("127.0.0.1", options.http_port), handler(settings)).serve_forever()


if __name__ == "__main__":
    main()
