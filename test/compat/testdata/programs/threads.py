# SPDX-License-Identifier: Apache-2.0
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

lock, total = threading.Lock(), 0


def add(n):
    global total
    with lock:
        total += n


threads = [threading.Thread(target=add, args=(i,)) for i in range(16)]
for t in threads:
    t.start()
for t in threads:
    t.join()

with ThreadPoolExecutor(4) as pool:
    squares = sum(pool.map(lambda x: x * x, range(10)))

q = queue.Queue()
threading.Timer(0.01, q.put, ["timer"]).start()
print(total, squares, q.get(timeout=30))
