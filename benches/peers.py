#!/usr/bin/env python3
"""Baselines for the memory-bound operators, measured as `kiln bench` measures.

Not part of the product: it needs a CUDA machine with PyTorch and Triton, and prints one JSON line per operator, shape
and peer with the fields of a bench record. Method: inputs rotate over sets that exceed four times a 60 MiB L2, about
6 ms of calls are captured in one CUDA graph, one replay warms, seven are timed, and the median replay over the calls is
the time of one call. Correctness is checked against a float32 expression before timing.

    python3 benches/peers.py --tokens 16384 --hidden 7168
"""

import argparse
import datetime
import json
import statistics
import sys

import torch
import triton
import triton.language as tl

L2_BYTES = 60 << 20


def time_calls(calls, bytes_per_set):
    """Median, minimum and 95th percentile microseconds of one call; `calls` is one closure an input set."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    one_us = begin.elapsed_time(end) * 1000 / len(calls)
    rounds = max(1, min(400 // len(calls), int(6000 / max(one_us, 1) / len(calls)) or 1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(7):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / (rounds * len(calls)))
    times.sort()
    return statistics.median(times), times[0], times[-1], rounds * len(calls)


@triton.jit
def cast_kernel(x, q, sf, hidden, groups, GROUP: tl.constexpr, ROWS: tl.constexpr):
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, GROUP)
    offs = block[:, None] * GROUP + cols[None, :]
    v = tl.load(x + offs).to(tl.float32)
    amax = tl.maximum(tl.max(tl.abs(v), 1), 1e-4)
    scale = amax / 448.0
    tl.store(q + offs, (v * (1.0 / scale)[:, None]).to(tl.float8e4nv))
    tl.store(sf + block, scale)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--tokens", type=int, nargs="+", default=[16384])
    args.add_argument("--hidden", type=int, nargs="+", default=[7168])
    opt = args.parse_args()
    torch.manual_seed(1)
    own = {"device": "cuda:0", "model": torch.cuda.get_device_name(0), "date": datetime.date.today().isoformat(),
           "command": " ".join(sys.argv), "versions": f"torch {torch.__version__}, triton {triton.__version__}"}

    def line(op, shape, peer, timing, nbytes, rel_err, sets):
        median, low, high, calls = timing
        print(json.dumps({
            "v": 1, "cmd": "bench", "op": op, "shape": shape, "peer": peer, "status": "ok", "config": {},
            "median_us": round(median, 3), "min_us": round(low, 3), "p95_us": round(high, 3), "tflops": None,
            "gbps": round(nbytes / median / 1e3, 1), "floor_us": None, "of_floor": None, "rel_err": rel_err, "calls": calls,
            "sets": sets, "timer": "graph", "mode": "burst", "reason": "", **own}), flush=True)

    for mib in (1024,):
        n = mib << 20
        xs = [torch.randint(0, 255, (n,), dtype=torch.uint8, device="cuda").view(torch.int32) for _ in range(2)]
        ys = [torch.empty_like(x) for x in xs]
        calls = [lambda x=x, y=y: torch.bitwise_not(x, out=y) for x, y in zip(xs, ys)]
        line("copy_kernel", {"mib": mib}, "torch_bitwise_not", time_calls(calls, 2 * n), 2 * n, 0.0, 2)
        del xs, ys, calls

    for tokens in opt.tokens:
        for hidden in opt.hidden:
            shape = {"tokens": tokens, "hidden": hidden}
            one = tokens * hidden * 4
            sets = max(2, min(24, -(-4 * L2_BYTES // one)))
            xs = [torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
            w = torch.randn(hidden, device="cuda", dtype=torch.float32)

            wb = w.to(torch.bfloat16)
            norm = lambda x: torch.nn.functional.rms_norm(x, (hidden,), wb, 1e-6)
            ref = xs[0].float() * torch.rsqrt(xs[0].float().pow(2).mean(-1, keepdim=True) + 1e-6) * wb.float()
            err = float((norm(xs[0]).float() - ref).norm() / ref.norm())
            line("rmsnorm_bf16", shape, "torch", time_calls([lambda x=x: norm(x) for x in xs], one), one, err, sets)

            compiled = torch.compile(lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * w).to(torch.bfloat16))
            try:
                ref = xs[0].float() * torch.rsqrt(xs[0].float().pow(2).mean(-1, keepdim=True) + 1e-6) * w
                err = float((compiled(xs[0]).float() - ref).norm() / ref.norm())
                line("rmsnorm_bf16", shape, "torch_compile", time_calls([lambda x=x: compiled(x) for x in xs], one), one, err, sets)
            except Exception as e:  # a missing host compiler on the machine: report, do not stop
                print(json.dumps({"v": 1, "cmd": "bench", "op": "rmsnorm_bf16", "shape": shape, "peer": "torch_compile",
                                  "status": "skip", "reason": str(e)[:200], **own}), flush=True)

            groups = hidden // 128
            nbytes = tokens * hidden * 3 + tokens * groups * 4
            outs = [(torch.empty(tokens, hidden, device="cuda", dtype=torch.float8_e4m3fn), torch.empty(tokens, groups, device="cuda")) for _ in xs]
            rows = 16
            def cast(x, o):
                cast_kernel[(tokens * groups // rows,)](x, o[0], o[1], hidden, groups, GROUP=128, ROWS=rows, num_warps=4)
            cast(xs[0], outs[0])
            back = outs[0][0].float().view(tokens, groups, 128) * outs[0][1][..., None]
            xf = xs[0].float().view(tokens, groups, 128)
            err = float((back - xf).norm() / xf.norm())
            line("cast_fp8_1x128", shape, "triton", time_calls([lambda x=x, o=o: cast(x, o) for x, o in zip(xs, outs)], nbytes), nbytes, err, sets)

            def cast_torch(x):
                xf = x.float().view(tokens, groups, 128)
                sf = xf.abs().amax(-1).clamp(min=1e-4) / 448.0
                return (xf * (1.0 / sf)[..., None]).to(torch.float8_e4m3fn), sf
            line("cast_fp8_1x128", shape, "torch_eager", time_calls([lambda x=x: cast_torch(x) for x in xs], nbytes), nbytes, err, sets)
            del xs, outs


if __name__ == "__main__":
    main()
