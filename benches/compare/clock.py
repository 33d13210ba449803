"""Runs a command and prints, as JSON, its wall time, the time from its start to its first byte on stdout, and its
stdout.

  python benches/compare/clock.py COMMAND...
"""
import json, subprocess, sys, time

start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
first = child.stdout.read(1)
first_byte = time.perf_counter() - start
rest = child.stdout.read()
code = child.wait()
if code == 0:
    out = (first + rest).decode(errors="replace")
    print(json.dumps({"seconds": time.perf_counter() - start, "first_byte_ms": 1e3 * first_byte, "out": out}))
sys.exit(code)
