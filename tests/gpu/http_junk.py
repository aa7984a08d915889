"""Junk for the page of a run: http_junk.py HOST PORT SECONDS. Random bytes, paths out of the folder, huge
headers, slow clients, 200 connections at once, half-open sockets. Prints one line; exit 1 when something was
served that must not be."""
import os, random, socket, sys, threading, time

host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end = time.time() + seconds
sent, served, held = [0], [], []
paths = ["/../../etc/passwd", "/..%2f..%2fetc/passwd", "/api/runs/../../../etc/passwd", "//etc/passwd",
         "/api/runs/%2e%2e", "/samples/1.png", "/runs/x/recipe.yaml",
         "/" + "a" * 9000, "/api/runs?from=" + "9" * 5000]


def ask(data, wait=0.5):
    with socket.socket() as s:
        s.settimeout(wait)
        s.connect((host, port))
        s.sendall(data)
        try:
            return s.recv(65536)
        except OSError:
            return b""


def junk():
    rng = random.Random(threading.get_ident())
    while time.time() < end:
        kind = rng.randrange(4)
        try:
            if kind == 0:
                answer = ask(os.urandom(rng.randrange(1, 4000)), 0.05)
            elif kind == 1:
                path = rng.choice(paths)
                answer = ask(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            elif kind == 2:
                answer = ask(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 200000 + b"\r\n\r\n")
            else:
                answer = ask(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
                if b" 200 " in answer[:20]: served.append("a foreign Host")
        except OSError:
            continue
        sent[0] += 1
        if b"root:" in answer: served.append("a file")


def hold():
    """Half-open and slow: a byte now and then."""
    for _ in range(200):
        try:
            s = socket.create_connection((host, port), timeout=1)
            s.sendall(b"GET / HT")
            held.append(s)
        except OSError:
            pass
    while time.time() < end:
        time.sleep(0.5)
        for s in held[:20]:
            try: s.sendall(b"T")
            except OSError: pass


threads = [threading.Thread(target=junk) for _ in range(4)] + [threading.Thread(target=hold)]
for t in threads: t.start()
for t in threads: t.join()
for s in held: s.close()
time.sleep(0.5)
alive = ask(b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 3)
print(f"{sent[0]} requests of junk, {len(held)} connections held, "
      f"served wrongly: {sorted(set(served)) or 'nothing'}, "
      f"afterwards {'it answers' if b'200' in alive[:20] else 'no answer'}")
sys.exit(bool(served) or b"200" not in alive[:20])
