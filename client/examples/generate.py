#!/usr/bin/env python3
"""Continues a prompt on a vflow server, streaming. docs/PROTOCOL.md explains what happens here.

    protoc --proto_path=proto --python_out=DIR proto/vflow.proto
    PYTHONPATH=DIR client/examples/generate.py ENDPOINT PROMPT [--server-key S.pub --key C.key]
"""
import argparse
import secrets
import sys

import zmq
import vflow_pb2 as vflow


def read_key(path, kind):
    for line in open(path):
        if line.split()[:1] == [kind]:
            return line.split()[1].encode()
    sys.exit(f"{path} has no {kind} key")


parser = argparse.ArgumentParser()
parser.add_argument("endpoint")
parser.add_argument("prompt")
parser.add_argument("--max-tokens", type=int, default=64)
parser.add_argument("--temperature", type=float, default=0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--server-key")
parser.add_argument("--key")
args = parser.parse_args()

socket = zmq.Context().socket(zmq.DEALER)
socket.linger = 0
if args.server_key:
    socket.curve_serverkey = read_key(args.server_key, "public")
    socket.curve_publickey = read_key(args.key, "public")
    socket.curve_secretkey = read_key(args.key, "secret")
socket.connect(args.endpoint)

request = vflow.Envelope(version=1, request_id=secrets.randbits(64) or 1)
request.generate.text = args.prompt.encode()
request.generate.max_tokens = args.max_tokens
request.generate.sampling.temperature = args.temperature
request.generate.sampling.seed = args.seed
socket.send(request.SerializeToString())

while socket.poll(30000):  # the server sends a heartbeat every 5 s while it works
    answer = vflow.Envelope.FromString(socket.recv())
    kind = answer.WhichOneof("body")
    if kind == "tokens":
        sys.stdout.buffer.write(answer.tokens.text)
        sys.stdout.flush()
    elif kind == "generate_done":
        print()
        sys.exit(0)
    elif kind == "error":
        sys.exit(f"error {answer.error.code}: {answer.error.text}")
sys.exit(f"{args.endpoint} doesn't answer")
