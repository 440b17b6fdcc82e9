"""The official client, unchanged: turns of one session, streamed.

usage: openai_session.py BASE_URL SESSION TURNS MAX_TOKENS

Prints a JSON line a turn: the engine's name and rank as its own headers say, and what was streamed.
A turn's line "first" comes as soon as its first token did.
"""

import json
import sys

from openai import OpenAI


def main() -> None:
    base_url, session, turns, max_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    client = OpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0)
    messages = [{"role": "system", "content": "You answer in short words. " * 40}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}?"})
        raw = client.chat.completions.with_raw_response.create(
            model="demo",
            messages=messages,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-session-id": session},
        )
        text, tokens, cached = "", 0, 0
        for chunk in raw.parse():
            if chunk.choices and chunk.choices[0].delta.content:
                if not tokens:
                    print(json.dumps({"first": turn}), flush=True)
                tokens += 1
                text += chunk.choices[0].delta.content
            if chunk.usage:
                cached = chunk.usage.prompt_tokens_details.cached_tokens
        messages.append({"role": "assistant", "content": text})
        line = {
            "engine": raw.headers["x-engine-name"],
            "rank": raw.headers["x-engine-rank"],
            "tokens": tokens,
            "cached": cached,
        }
        print(json.dumps(line), flush=True)


main()
