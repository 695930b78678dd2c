"""Reads the events of Falco's driver as its consumers do, until its standard input ends.

The driver's probes run once a device is open, and fill an event in only while its ring is enabled
and has room. The thread that opens the devices is what the driver calls a consumer. One device
and one ring a CPU; a ring's first page is `struct ppm_ring_buffer_info` (ppm_ringbuffer.h):
u32 head, u32 tail, u64 events, u64 dropped for want of room, u64 dropped by a page fault, u64
dropped inside another event. Prints one line a ring at the end.
"""

import fcntl
import mmap
import os
import select
import struct
import sys

ENABLE_CAPTURE = ord("s") << 8 | 1  # _IO('s', 1)
INFO = struct.Struct("=IIQQQQ")
TAIL = slice(4, 8)

rings = []
for cpu in range(os.cpu_count()):
    device = os.open(f"/dev/scap{cpu}", os.O_RDWR)
    info = mmap.mmap(device, mmap.PAGESIZE)
    fcntl.ioctl(device, ENABLE_CAPTURE)
    rings.append(info)
print("scap: capture enabled", flush=True)

while not select.select([sys.stdin], [], [], 0.02)[0]:
    for info in rings:
        head = INFO.unpack_from(info)[0]
        info[TAIL] = struct.pack("=I", head)

for cpu, info in enumerate(rings):
    _, _, events, room, fault, inside = INFO.unpack_from(info)
    print(f"scap: ring {cpu}: events {events} dropped {room + fault + inside}", flush=True)
