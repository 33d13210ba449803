"""Requests that are odd, too large or none, random questions about the inside of the model, and steps that cost as much
as they may, sent to a server of limpid. Meanwhile a plain request comes every 100 ms: the longest that one waited is
told, and the bytes of its answer must stay.

    limpid serve --model runs/stories --allow-interventions &
    python3 reference/hostile.py http://127.0.0.1:8080 --requests 5000

Each answer must come within 10 s and be no fault of the server (a status of 500, or bytes that are no HTTP); a request
that is cut off may stay without one. At the end the server must be well, and its memory is told before and after (on
Linux, for a server on this machine). Exit 1 if anything was wrong. Needs Python 3.9 and nothing else; the same --seed
sends the same.
"""
import argparse, json, multiprocessing, os, random, re, socket, sys, threading, time
from urllib.parse import quote, urlsplit

LIMIT = 10.0
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/apply-template"]
GETS = ["/", "/docs", "/health", "/ready", "/metrics", "/openapi.json", "/tokenizer_info", "/v1/models", "/v1/models/x",
    "/inspect/v1/model", "/inspect/v1/traces", "/inspect/v1/walks"]


class Server:
    def __init__(self, url, key):
        parts = urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.auth = f"Authorization: Bearer {key}\r\n" if key else ""

    def send(self, data, read=True, timeout=LIMIT):
        """Status and body of the answer; None where the server closes without one."""
        end = time.monotonic() + timeout
        with socket.create_connection((self.host, self.port), timeout) as s:
            try:
                s.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it may have answered before all was sent
            if not read:
                return None
            got = b""
            while True:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no whole answer after {timeout:g} s, but {got[:80]!r}")
                s.settimeout(left)
                try:
                    part = s.recv(1 << 16)
                except ConnectionResetError:
                    part = b""
                if not part:
                    break
                got += part
                done = whole(got)
                if done is not None:
                    return done
            if not got:
                return None
            return whole(got, closed=True) or (0, got)

    def post(self, path, body, headers=""):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{self.auth}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        return head.encode() + body

    def get(self, path, method="GET", headers=""):
        return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{self.auth}{headers}\r\n".encode()


def whole(data, closed=False):
    """Status and body, if all of it is there."""
    head, mark, body = data.partition(b"\r\n\r\n")
    if not mark:
        return None
    first = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if not first:
        return (0, data)
    status = int(first[1])
    if status < 200:
        return whole(body, closed)  # go on, says the server
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if length:
        return (status, body) if closed or len(body) >= int(length[1]) else None
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return (status, body) if closed or body.endswith(b"0\r\n\r\n") else None
    return (status, body) if closed or status == 204 else None


def value(draw, depth=0):
    simple = [None, True, False, 0, 1, -1, 2, 16.0, 0.5, 1e300, -1e300, 2**31, 2**53, 2**63, 2**64, -(2**63), "", "a",
        "to be", "x" * 300, "\u0000", "\ud83d\ude42", "<|endoftext|>", "none", "float"]
    if depth > 3 or draw.random() < 0.7:
        return draw.choice(simple)
    if draw.random() < 0.5:
        return [value(draw, depth + 1) for _ in range(draw.choice([0, 1, 2, 20]))]
    return {str(draw.choice(["type", "text", "role", "content", "1", "0", "a", ""])): value(draw, depth + 1)
        for _ in range(draw.randrange(3))}


def body_of(draw, schema, schemas):
    """An object with some of a schema's properties, right or wrong."""
    found = {}
    names = list(schema.get("properties", {}))
    for name in names:
        if name in schema.get("required", []) and draw.random() < 0.9 or draw.random() < 0.12:
            found[name] = likely(draw, name) if draw.random() < 0.8 else value(draw)
    if draw.random() < 0.1:
        found[draw.choice(["nothing", "", "n_predict", "x" * 2000])] = value(draw)
    text = json.dumps(found)
    kind = draw.random()
    if kind < 0.03:
        text = text[: draw.randrange(len(text) + 1)]
    elif kind < 0.06 and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every key twice
    elif kind < 0.08:
        text = "[" * draw.choice([10, 100, 100_000]) + text
    elif kind < 0.1:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice('{}[]",:0-eE\\ \n') + text[at + 1 :]
    data = text.encode()
    return bytes(draw.randrange(256) for _ in range(50)) if draw.random() < 0.02 else data


def likely(draw, name):
    message = {"role": draw.choice(["user", "assistant", "system", "tool"]),
        "content": draw.choice(["a", "", None, "to be " * 50])}
    texts = ["to be", "", "a" * draw.choice([1, 100, 5000]), [1, 2, 3], ["a", "b"], [[1], [2, 3]]]
    some = {"prompt": texts, "input": texts, "messages": [[message] * draw.choice([1, 2, 50]), []], "tokens": [[1, 2],
        [], [2**40]], "max_tokens": [0, 1, 8, 10**6], "max_completion_tokens": [1, 8],
            "n": [1, 2, 128], "logprobs": [0, 5, 20, True], "top_logprobs": [0, 20], "stream": [True, False],
            "temperature": [0, 1, 2], "stop": ["a", ["a"] * 16], "seed": [0, -1], "limpid": [{}, {"receipt": True}],
            "logit_bias": [{"1": 100}, {}], "echo": [True]}
    return draw.choice(some.get(name, [value(draw)]))


def question(draw, names, ids):
    """A path below /inspect/v1/ and perhaps a body."""
    number = lambda: draw.choice(["0", "1", "2", "5", "11", "-1", "18446744073709551615", "9" * 25, "", "x", "1.5",
        "+1"])
    place = lambda: draw.choice(["*", number(), f"{number()}:{number()}", ":", "0", "0"])
    name, shape = draw.choice(names)
    wraps = draw.choice([0, 0, 0, 1, 1, 1, 2, 3, 400])
    name = draw.choice([name] * 9 + ["", "cos(", "%", "..", "a" * 3000, "blocks.99.hook_resid_pre"])
    name = "cos(" * wraps + name + ")" * draw.choice([wraps] * 9 + [wraps + 1, 0])
    trace = draw.choice(ids * 4 + ["0" * 16, "x", ""])
    if draw.random() < 0.25:
        tile = lambda: {"name": name, "index": [draw.choice([0, 0, 0, 1, 2**63])
            for _ in range(draw.choice([0, 1, 2, 2, 2, 9]))],
                "tile": [draw.choice([0, 0, 0, 1, 2**60]) for _ in range(2)],
                        "level": draw.choice([0, 1, 5, 12, 12, 13, -1, "1", 2**64]),
                        "pool": draw.choice(["max", "absmax", "mean", "x"]),
                        "code": draw.choice(["f32", "lin8", "log8", "slog8", 5])}
        tiles = [tile() for _ in range(draw.choice([1, 1, 1, 4, 256, 257]))]
        if draw.random() < 0.2:
            tiles[0][draw.choice(["other", "name", "nothing", "index"])] = draw.choice(ids + [5, None, [], "x"])
        return f"traces/{trace}/tiles", {"tiles": tiles}
    if draw.random() < 0.1:
        body = {"prompt": draw.choice(["to be", "", "a" * 100_000, 5]), "last": draw.choice([True, False, "yes", None])}
        if draw.random() < 0.3:
            body[draw.choice(["tokens", "model", "x"])] = draw.choice([[0, 1], [-1], "x", None])
        return "traces", body
    kind = draw.choice(["tensors", "tensors", "tensors", "explain", "lens", "attribution", "mlp", "predictions",
        "nothing"])
    query = []
    if kind in ("tensors", "explain"):
        inside = [draw.choice([str(draw.randrange(size)), "*", f"{draw.randrange(size)}:"]) if kind == "tensors"
            else str(draw.randrange(size)) for size in shape]
        query.append(("at", ",".join(inside if draw.random() < 0.6 else (place()
            for _ in range(draw.choice([1, 2, 2, 3, 4, 30]))))))
        for key, some in [("other", ids + ["5", ""]), ("stats", ["1", "0", "yes", "false"]), ("format",
            ["csv", "npy", "safetensors", "f32", "json", "exe"]), ("at", ["*"])]:
            if draw.random() < 0.1:
                query.append((key, draw.choice(some)))
        kind += "/" + quote(name, safe="" if draw.random() < 0.5 else "()/*")
    else:
        for key in ["position", "positions", "k", "layer", "target", "foil", "unit", "nothing"]:
            if draw.random() < 0.25:
                query.append((key, draw.choice(["0", "1", number(), place(), "none", "head", "neuron"])))
    text = "&".join(f"{key}={quote(one, safe=':,*')}" for key, one in query if draw.random() < 0.9)
    return f"traces/{trace}/{kind}" + (f"?{text}" if text else ""), None


def steps(draw):
    """Interventions as many, as long and as costly as they may be, or a little more; some lists name a number twice."""
    layer = draw.randrange(2)
    pattern = f"blocks.{layer}.attn.hook_pattern"
    site = f"blocks.{layer}.hook_resid_{draw.choice(['pre', 'mid', 'post'])}"
    keys = list(range(draw.choice([2, 8, 400, 50_000])))
    draw.shuffle(keys)
    one = draw.choice([
        {"scale": pattern, "by": 1.01, "key": [0] * draw.choice([2, 100_000])},
        {"scale": pattern, "by": 1.01, "key": keys},
        {"scale": pattern, "by": 0.99},
        {"set": pattern, "row": {str(key): 0.1 for key in keys[:20_000]}},
        {"set": pattern, "pos": draw.choice([0, -1]), "row": {"0": 1.0}},
        {"ablate": f"blocks.{layer}.mlp.hook_post"},
        {"scale": f"blocks.{layer}.attn.hook_z", "by": draw.choice([0.5, -1, 1e30])},
        {"steer": site, "by": 0.01, "add": {"vector": [0.5] * draw.choice([1, 64, 128, 40_000])}},
        {"scale": site, "by": 1.001, "pos": keys},
        {"patch": site, "pos": keys, "from": {"prompt": "to be"}, "from_pos": 0},
        {"freeze_attention": "all", "from": {"prompt": draw.choice(["to be", "a" * 200])}},
    ])
    return [one] * draw.choice([1, 1, 2, 64, 255, 256, 257])


def costly(draw, server):
    """A request whose steps cost much: an answer, or a look inside."""
    prompt = draw.choice(["to be", "that is", "a" * 200])
    if draw.random() < 0.3:
        return server.post("/inspect/v1/traces", {"prompt": prompt, "interventions": steps(draw)})
    body = {"prompt": prompt, "max_tokens": draw.choice([1, 4, 30]), "n": draw.choice([1, 1, 2, 16]),
        "ignore_eos": True, "limpid": {"interventions": steps(draw)}}
    return server.post("/v1/completions", body)


def odd(draw, server):
    """A request that is none, or almost one, and whether an answer must come."""
    good = server.post("/tokenize", {"prompt": "to"})
    head, body = good.split(b"\r\n\r\n", 1)
    cut = good[: draw.randrange(len(good))]
    add = lambda line: (head + b"\r\n" + line + b"\r\n\r\n" + body, True)
    size = draw.choice([100, 20_000, 70_000, 300_000])
    return draw.choice([
        lambda: (cut, False),
        lambda: (b"", False),
        lambda: (bytes(draw.randrange(256) for _ in range(draw.choice([1, 50, 3000]))), False),
        lambda: (server.get("/" + "x" * size), True),
        lambda: (server.get("/health", headers=f"X-Long: {'x' * size}\r\n"), True),
        lambda: (server.get("/health", headers="X: y\r\n" * draw.choice([10, 99, 101, 2000])), True),
        lambda: (server.get("/health", method=draw.choice(["PUT", "DELETE", "OPTIONS", "TRACE", "FROB", "PATCH"])),
        True),
        lambda: (server.get(draw.choice(GETS) + draw.choice(["", "?", "?a=b", "/", "//", "/../", "%00", "#x"])), True),
        lambda: add(draw.choice([b"Content-Encoding: gzip", b"Content-Type: text/plain", b"Content-Length: 5",
        b"Host: other", b"Origin: https://evil.example", b"Expect: 100-continue", b"Upgrade: h2c",
        b"Connection: close"])),
        lambda: (head.replace(b"Content-Length", b"X-Length") + b"\r\nTransfer-Encoding: " + draw.choice([b"chunked",
        b"gzip, chunked", b"chunked, chunked", b"identity, chunked"]) + b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body),
        body), True),
        lambda: (head.replace(b"Content-Length",
        b"X-Length") + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + draw.choice([b"zz\r\n", b"ffffffffffffffff\r\n",
        b"-1\r\n", b"5\r\nabc"]), False),
        lambda: (server.post("/tokenize", b'{"prompt":"' + b"a" * draw.choice([2**15, 2**20, 2**21]) + b'"}'), True),
        lambda: (server.post("/v1/completions", {"prompt": ["a"] * draw.choice([256, 257]), "n": draw.choice([1, 128]),
        "max_tokens": 1}), True),
    ])()


def memory(port):
    """Bytes that the process holds which listens at a port of this machine; None if it is not known."""
    try:
        inodes = set()
        for table in ["/proc/net/tcp", "/proc/net/tcp6"]:
            for line in open(table).readlines()[1:]:
                cells = line.split()
                if int(cells[1].split(":")[1], 16) == port and cells[3] == "0A":
                    inodes.add(f"socket:[{cells[9]}]")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if any(os.readlink(f"/proc/{pid}/fd/{fd}") in inodes for fd in os.listdir(f"/proc/{pid}/fd")):
                    return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) * 1024
            except OSError:
                continue
    except OSError:
        pass
    return None


PLAIN = {"prompt": "to be", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def ask_plainly(server, told):
    """Asks the same every 100 ms until somebody says something, then tells how long each took, and what was wrong. It
    runs in a process of its own: a thread would wait for those that write requests of 50 MB."""
    plain, waits, faults, asked = server.post("/v1/completions", PLAIN), [], [], []
    text = lambda answer: answer and answer[0] == 200 and json.loads(answer[1])["choices"]
    want = text(server.send(plain))

    def ask(n):
        began = time.monotonic()
        try:
            answer = server.send(plain)
        except OSError as error:
            answer = (-1, str(error).encode())
        waits.append(time.monotonic() - began)
        if answer is None or answer[0] != 429 and text(answer) != want:  # the queue may be full of others
            faults.append((f"plain {n}", plain[:300], answer and (answer[0], answer[1][:300])))

    while not told.poll(0.1):
        asked.append(threading.Thread(target=ask, args=(len(asked),)))
        asked[-1].start()
    [thread.join() for thread in asked]
    told.send((waits, faults))


def main():
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("url")
    ask.add_argument("--requests", type=int, default=2000)
    ask.add_argument("--clients", type=int, default=4)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--steps", type=float, default=0.1, help="share of requests with costly steps")
    ask.add_argument("--key")
    args = ask.parse_args()
    server = Server(args.url, args.key)
    status, about = server.send(server.get("/openapi.json"))
    schemas = json.loads(about)["components"]["schemas"]
    requests = [schemas[name] for name in ["CompletionRequest", "ChatRequest", "EmbeddingRequest", "TokenizeRequest",
        "DetokenizeRequest", "TemplateRequest"]]
    ids, names = [], [("embed.weight", [1, 1])]
    for prompt in ["to be or not", "that is"]:
        done = server.send(server.post("/inspect/v1/traces", {"prompt": prompt}), timeout=120)
        found = re.search(rb'"id":"(\w+)"', done[1]) if done else None
        ids += [found[1].decode()] if found else []
    if ids:
        listing = json.loads(server.send(server.get(f"/inspect/v1/traces/{ids[0]}/tensors"))[1])
        names = [(tensor["name"], tensor["shape"]) for tensor in listing["tensors"] + listing["params"]]
    ids = ids or ["0" * 16]
    before, faults, statuses, slowest, lock = memory(server.port), [], {}, 0.0, threading.Lock()
    work = iter(range(args.requests))

    def client():
        nonlocal slowest
        while True:
            with lock:
                n = next(work, None)
            if n is None:
                return
            draw = random.Random(args.seed * 1_000_003 + n)
            kind, due = draw.random(), True
            if draw.random() < args.steps:
                data = costly(draw, server)
            elif kind < 0.4:
                path, body = question(draw, names, ids)
                path = "/inspect/v1/" + path
                data = server.get(path) if body is None else server.post(path, body)
            elif kind < 0.75:
                at = draw.randrange(len(PATHS))
                data = server.post(PATHS[at], body_of(draw, requests[at], schemas))
            else:
                data, due = odd(draw, server)
            gone = draw.random() < 0.05
            began = time.monotonic()
            try:
                done = server.send(data, read=due and not gone)
            except OSError as error:
                done = (-1, str(error).encode())
            took = time.monotonic() - began
            with lock:
                if done:
                    statuses[done[0]] = statuses.get(done[0], 0) + 1
                slowest = max(slowest, took)
                if due and not gone and (done is None or done[0] < 200 or done[0] == 500):
                    faults.append((n, data[:300], done and (done[0], done[1][:300])))

    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=ask_plainly, args=(server, there)).start()
    there.close()
    threads = [threading.Thread(target=client) for _ in range(args.clients)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    here.send("done")
    waits, wrong = here.recv()
    faults += wrong
    for n, data, answer in faults[:20]:
        print(f"request {n}: {data!r}\n  was answered with {answer!r}", file=sys.stderr)
    try:
        well = server.send(server.get("/health"))
    except OSError as error:
        well = (-1, str(error).encode())
    after = memory(server.port)
    held = ", ".join(f"{count} of {status}" for status, count in sorted(statuses.items()))
    print(f"{args.requests} requests: {len(faults)} faults; answers: {held}; the slowest took {slowest:.2f} s")
    if waits:
        late = sorted(waits)
        print(f"{len(late)} plain requests beside them: the median took {late[len(late) // 2]:.3f} s, 99 % at most {late[len(late) * 99 // 100]:.3f} s, the slowest {late[-1]:.3f} s")
    if before and after:
        print(f"memory of the server: {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB after")
    if faults or not well or well[0] != 200:
        print(f"the server is not well: {well!r}" if not well or well[0] != 200 else "there were faults",
            file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
