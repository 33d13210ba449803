"""Answers of a server under load, half of them steered, with clients that leave, beside the answers it gives to each
request alone.

    python3 reference/company.py target/release/limpid MODEL --clients 64 --requests 1500

Starts `limpid serve`, asks for each of 40 completions alone, then has many clients ask for them at once, of which a
third goes away in the middle. Every second request changes what the model computes for it (`limpid.interventions`),
each in its way. Every answer that was read to its end must have the bytes it has alone, and most steered ones must
differ from what they are without the change. Exits with 1 otherwise. Standard library only.
"""

import argparse
import http.client
import json
import random
import re
import subprocess
import sys
import threading


def steps(number, draw):
    """Changes that fit every model."""
    return draw.choice([
        [{"ablate": "blocks.0.attn.hook_z", "head": 0}],
        [{"scale": "blocks.0.hook_resid_post", "by": 1.5 + number / 8, "pos": draw.choice(["all", "prompt", -1])}],
        [{"steer": "blocks.0.hook_resid_post", "by": 2, "add": {"difference": ["the cat", "said Tom"]}}],
        [{"patch": "blocks.0.hook_mlp_out", "pos": -1, "from": {"prompt": "Once upon"}, "from_pos": -1}],
        [{"scale": "blocks.0.attn.hook_pattern", "by": 0.5, "key": 0}, {"scale": "blocks.0.hook_mlp_out", "by": -1}],
    ])


def body(number, draw):
    prompt = " ".join(draw.choice(["Once", "upon", "a", "time", "the", "cat", "said", "Tom"])
        for _ in range(draw.randint(1, 20)))
    asked = {"prompt": prompt, "max_tokens": draw.randint(1, 40), "seed": number,
        "temperature": draw.choice([0, 0.7, 1.3]), "stream": True}
    if draw.random() < 0.3:
        asked |= {"n": 3}
    if draw.random() < 0.3:
        asked |= {"logprobs": 3}
    plain = json.dumps(asked)
    if number % 2:
        asked |= {"limpid": {"interventions": steps(number, draw)}}
    return plain, json.dumps(asked)


def ask(address, text, leaves=None):
    """The stream's data without its times and names; none if the client left it after that many lines."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
    answer, choices, read = connection.getresponse(), {}, 0
    assert answer.status == 200, (answer.status, answer.read())
    while line := answer.readline():
        read += 1
        if leaves is not None and read > leaves:
            connection.sock.close() if connection.sock else answer.close()
            return None
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        for choice in event["choices"]:
            choices.setdefault(choice["index"], []).append([choice["text"], choice.get("logprobs"),
                choice["finish_reason"]])
    connection.close()
    return json.dumps(choices, sort_keys=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("limpid")
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1500)
    asked = parser.parse_args()
    command = [asked.limpid, "serve", "--model", asked.model, "--port", "0", "--max-queue", "100000",
        "--allow-interventions"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        host, port = re.search(r"http://([\d.]+):(\d+)", server.stderr.readline()).groups()
        threading.Thread(target=server.stderr.read, daemon=True).start()
        address = (host, int(port))
        draw = random.Random(1)
        plain, bodies = zip(*[body(number, draw) for number in range(40)])
        alone = [ask(address, text) for text in bodies]
        steered = sum(ask(address, text) != alone[number] for number, text in enumerate(plain)
            if text != bodies[number])
        same, differ, left, failed = [0], [], [0], []
        lock, todo = threading.Lock(), list(range(asked.requests))

        def client(number):
            draw = random.Random(number)
            while True:
                with lock:
                    if not todo:
                        return
                    todo.pop()
                which = draw.randrange(len(bodies))
                leaves = draw.randint(0, 20) if number % 3 == 0 else None
                try:
                    told = ask(address, bodies[which], leaves)
                except Exception as error:  # noqa: BLE001: whatever it is, it is shown
                    failed.append(repr(error))
                    continue
                with lock:
                    if told is None:
                        left[0] += 1
                    elif told == alone[which]:
                        same[0] += 1
                    else:
                        differ.append(which)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(asked.clients)]
        [thread.start() for thread in clients]
        [thread.join() for thread in clients]
        print(f"{steered} of 20 steered answers differ from the plain ones")
        print(f"{asked.clients} clients: {same[0]} answers as alone, {len(differ)} others, {left[0]} left, {len(failed)} failed {failed[:3]}")
        return bool(differ or failed or not same[0] or not left[0] or steered < 15)
    finally:
        server.terminate()


if __name__ == "__main__":
    sys.exit(main())
