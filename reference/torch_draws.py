#!/usr/bin/env python3
"""What PyTorch draws on a CPU, for the walk through "Zero-to-Hero", whose tables are such draws.

    python reference/torch_draws.py crates/limpid-study/fixtures/torch.json

`cases`: seeds, and what is drawn one after another: the words that `randint` takes, `randn` and `uniform_` of several
sizes. `notebook`: parts of the article's two tables and of its first linear layers, drawn with the seed 1337.
"""

import json
import random
import sys

import torch
from torch import nn

SIZES = [16, 17, 31, 32, 47, 48, 63, 64, 100]


def numbers(values):
    return [float(f"{value:.9g}") for value in values.detach().flatten().tolist()]


def case(seed, choose):
    torch.manual_seed(seed)
    draws = []
    for _ in range(4):
        size = choose.choice(SIZES)
        match choose.choice(["words", "normal", "uniform"]):
            case "words":
                size = choose.choice([1, 5, 600, 623, 624, 625, 5000])
                torch.randint(0, 90000, (size,))
                draws.append({"words": size})
            case "normal":
                draws.append({"normal": numbers(torch.randn(size))})
            case "uniform":
                draws.append({"uniform": numbers(torch.empty(size).uniform_(-0.125, 0.125))})
    return {"seed": seed, "draws": draws}


def notebook():
    torch.manual_seed(1337)
    torch.randint(0, 90000, (4,))
    first = nn.Embedding(100069, 64).weight
    query, key, value = (nn.Linear(64, 64) for _ in range(3))
    for sizes in [(64, 64), (64, 256), (256, 64), (64, 3771)]:
        nn.Linear(*sizes)
    torch.randint(0, 90000, (5,))
    second = nn.Embedding(100069, 64).weight
    rows = [0, 7, 4213, 87678, 100068]
    return {
        "rows": rows,
        "first": [numbers(first[row]) for row in rows],
        "second": [numbers(second[row]) for row in rows],
        "weights": [numbers(torch.cat([part.weight[0], part.weight[63]])) for part in (query, key, value)],
        "biases": [numbers(part.bias) for part in (query, key, value)],
    }


def main(path):
    choose = random.Random(1)
    seeds = [0, 1, 1337, 2**32 - 1, *(choose.randrange(2**32) for _ in range(8))]
    found = {"torch": torch.__version__, "cases": [case(seed, choose) for seed in seeds], "notebook": notebook()}
    with open(path, "w") as file:
        file.write(json.dumps(found, separators=(",", ":")).replace('{"seed"', '\n{"seed"').replace('"notebook"',
            '\n"notebook"') + "\n")


main(sys.argv[1])
