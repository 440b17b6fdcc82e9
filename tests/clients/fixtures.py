"""What aiperf needs offline: a tokenizer, and traces of agents with subagents.

usage: fixtures.py FOLDER

Makes FOLDER/tokenizer, FOLDER/dag.jsonl and FOLDER/weka/. In each of the two formats a root session
has two subagents of several turns.
"""

import json
import random
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>"]
WORDS = "route session parent worker rank prefix cache token prefill decode batch queue load".split()


def tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True)
    random.seed(0)
    corpus = [" ".join(random.choices(WORDS, k=40)) for _ in range(200)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(corpus, trainer)
    made.save(str(folder / "tokenizer.json"))
    names = dict(zip(["bos_token", "eos_token", "pad_token"], SPECIAL))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 32768,
        "chat_template": template,
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps(names))


def dag(path: Path) -> None:
    def turn(text: str, **more) -> dict:
        return {"messages": [{"role": "user", "content": text * 40}], "max_tokens": 8, **more}

    children = ["child-1", "child-2"]
    lines = [
        {"session_id": "root", "turns": [turn("plan ", spawns=children), turn("go on "), turn("end ")]},
        *({"session_id": child, "turns": [turn(f"{child} "), turn("and ")]} for child in children),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def weka(folder: Path) -> None:
    folder.mkdir()

    def request(at: float, tokens: int, blocks: list[int]) -> dict:
        return {
            "t": at, "type": "s", "model": "demo", "in": tokens, "out": 8, "hash_ids": blocks,
            "stop": "end_turn", "api_time": 0.2, "think_time": 0.01, "ttft": 0.05,
        }

    about = {"models": ["demo"], "tool_tokens": 64, "system_tokens": 64}
    for trace in range(2):
        base = [1000 * trace + n for n in range(1, 9)]

        def subagent(number: int, at: float) -> dict:
            own = 1000 * trace + 100 * number
            return {
                "t": at, "type": "subagent", "agent_id": f"agent_{number:03}",
                "subagent_type": "Explore", "duration_ms": 300, "total_tokens": 500,
                "tool_use_count": 1, "status": "completed", **about,
                "requests": [
                    request(at + 0.05, 192, [*base[:2], own]),
                    request(at + 0.2, 256, [*base[:2], own, own + 1]),
                ],
            }

        whole = {
            "id": f"trace{trace}", "block_size": 64, "hash_id_scope": "local", **about,
            "requests": [
                request(0.0, 256, base[:4]),
                request(0.3, 384, base[:6]),
                subagent(1, 0.5),
                subagent(2, 1.0),
                request(1.5, 512, base),
            ],
            "totals": {},
        }
        (folder / f"trace{trace}.json").write_text(json.dumps(whole))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(folder / "tokenizer")
    dag(folder / "dag.jsonl")
    weka(folder / "weka")


main()
