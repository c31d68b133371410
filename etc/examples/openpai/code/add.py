"""Adds up the numbers of all servers (`host:port,host:port`) and prints the sum, times a factor."""

import argparse
import sys
import time
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("--factor", type=int, default=1)
parser.add_argument("servers")
given = parser.parse_args()
total = 0
for server in given.servers.split(","):
    while True:
        try:
            with urllib.request.urlopen(f"http://{server}/numbers.txt") as page:
                total += sum(map(int, page.read().split()))
            break
        except OSError:
            time.sleep(0.1)
sys.stdout.write(f"{given.factor * total}\n")
