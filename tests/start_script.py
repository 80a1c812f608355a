"""Client of the fork server: requests a script and exits with its status; imports nothing.

    python -S tests/start_script.py SOCKET SCRIPT ARGUMENTS...

What the pages' shell commands start stands so in the place of Python itself.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    asked = [os.getpid(), sys.argv[2:], os.getcwd(), dict(os.environ)]
    line.sendall(json.dumps(asked).encode() + b"\n")
    status = line.makefile().readline()
sys.exit(int(status))
