# SPDX-License-Identifier: Apache-2.0
import asyncio


async def echo(reader, writer):
    writer.write((await reader.read(100)).upper())
    await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"loopback")
    answer = await reader.read()
    in_thread = await asyncio.to_thread(sum, [1, 2, 3])
    results = await asyncio.gather(*(asyncio.sleep(0.001, i) for i in range(5)))
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except asyncio.TimeoutError:
        print(answer.decode(), in_thread, results)


asyncio.run(main())
