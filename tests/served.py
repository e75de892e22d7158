"""A server in this process, over a tiny model: one forward for each text.

It is a completions server, or by ``kind`` one that has chat completions only (``chat``, and with ``prompt_logprobs``
``vllm``), or behaves like ``llama-server`` (``llama``; ``llama after`` returns log-probabilities after the grammar).
"""

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode


class Served:
    """The requests to a test server, and switches for its answers.

    ``log_probs``: return the prompt's log-probabilities. ``fails``: statuses of the next requests. ``dies_after``:
    number of answers. ``writes``: generated texts by prompt. ``changes``: a function of an answer. ``waits``: seconds.
    ``sends``: a function of handler and body that writes the reply. ``gets``: one of a handler, for GET.
    """

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.requests, self.keys, self.fails = [], [], []
        self.log_probs, self.dies_after, self.writes = True, None, lambda prompt: "Yes"
        self.changes, self.waits, self.sends = lambda content: content, threading.Event(), None
        self.kind, self.num_top, self.gets = "completions", 20, None
        self.waits.set()
        self.lock = threading.Lock()

    @torch.no_grad()
    def echoed(self, text):
        ids = self.tokenizer(text)["input_ids"]
        log_probs = self.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        own = [None, *(float(log_probs[at - 1, ids[at]]) for at in range(1, len(ids)))]
        written = int(log_probs[-1].argmax())
        tokens = [self.tokenizer.decode([each]) for each in [*ids, written]]
        logprobs = {"tokens": tokens, "token_logprobs": [*own, -1.0]} if self.log_probs else None
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        return {"text": text + tokens[-1] if self.log_probs else tokens[-1], "logprobs": logprobs}, usage

    def lacks(self, asked):
        """Whether the server has no such completion."""
        return self.kind in ("chat", "vllm") or (self.kind.startswith("llama") and "echo" in asked)

    def log_probs_of(self, ids):
        return self.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    def rendered(self, turns):
        begun = turns[-1]["role"] == "assistant"
        how = {"add_generation_prompt": not begun, "continue_final_message": begun}
        return self.tokenizer.apply_chat_template(turns, tokenize=False, **how)

    @torch.no_grad()
    def chat(self, asked):
        """The first token of an answer, as vLLM returns it."""
        ids = self.tokenizer(self.rendered(asked["messages"]))["input_ids"]
        log_probs, reply = self.log_probs_of(ids), {}
        decoded = self.tokenizer.decode
        if asked.get("logprobs"):
            best = log_probs[-1].topk(self.num_top if self.num_top > 20 else min(self.num_top, asked["top_logprobs"]))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            top = [{"token": text, "logprob": value, "bytes": list(text.encode())}
                   for text, value in ((decoded([each]), value) for each, value in pairs)]  # fmt: skip
            reply["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        prompt = [{str(each): {"logprob": float(log_probs[at, each]), "rank": 1, "decoded_token": decoded([each])}}
                  for at, each in enumerate(ids[1:])]  # fmt: skip
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        found = {"message": {"role": "assistant", "content": "x"}, **reply}, usage
        return found, {"prompt_logprobs": [None, *prompt]} if self.kind == "vllm" and "prompt_logprobs" in asked else {}

    @torch.no_grad()
    def forced(self, asked):
        """The tokens of a grammar, as llama-server returns them."""
        wanted = [int(each) for each in re.findall(r"<\[(\d+)\]>", asked["grammar"])]
        log_probs = self.log_probs_of(asked["prompt"] + wanted)
        content = []
        for at, token in enumerate(wanted, len(asked["prompt"]) - 1):
            best, own = log_probs[at].max(-1), float(log_probs[at, token])
            shown = (
                [(token, 0.0), (token, 0.0)]
                if self.kind == "llama after"
                else [(token, own), (int(best.indices), float(best.values))]
            )
            one, top = ({"id": each, "token": self.tokenizer.decode([each]), "logprob": value} for each, value in shown)
            content.append({**one, "top_logprobs": [top]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(wanted), "total_tokens": 0}
        return {"text": self.tokenizer.decode(wanted), "logprobs": {"content": content}}, usage

    def piece(self, token):
        """The text of a token, or the bytes of a part of a character."""
        text, shown = self.tokenizer.decode([token]), self.tokenizer.convert_ids_to_tokens(token)
        if "\ufffd" in text:
            byte_of = {char: byte for byte, char in bytes_to_unicode().items()}
            return [byte_of[each] for each in shown]
        return shown.replace("▁", " ") if "▁" in shown else text

    def llama(self, path, asked):
        """The endpoints of llama-server next to /v1."""
        if path == "/tokenize":
            return {
                "tokens": [
                    {"id": each, "piece": self.piece(each)} for each in self.tokenizer(asked["content"])["input_ids"]
                ]
            }
        return {"prompt": self.rendered(asked["messages"])}

    def answer(self, asked, path="/v1/completions"):
        extra = {}
        if not path.startswith("/v1"):
            return self.llama(path, asked)
        if "grammar" in asked:
            choice, usage = self.forced(asked)
        elif self.kind in ("chat", "vllm") and asked.get("max_tokens") == 1:
            (choice, usage), extra = self.chat(asked)
        elif asked.get("echo"):
            choice, usage = self.echoed(asked["prompt"])
        else:
            prompt = asked["prompt"] if "prompt" in asked else asked["messages"][0]["content"]
            text = self.writes(prompt)
            choice = {"text": text} if "prompt" in asked else {"message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        return {"id": "1", "object": "x", "created": 0, "model": asked["model"], "usage": usage, **extra,
                "choices": [{"index": 0, "finish_reason": "length", **choice}]}  # fmt: skip


@contextlib.contextmanager
def serving(model, tokenizer):
    """Start a server on a free port and yield its switches and ``openai:URL#NAME``."""
    served = Served(model, tokenizer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = self.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with served.lock:
                if served.dies_after is not None and len(served.requests) >= served.dies_after:
                    self.close_connection = True
                    return self.connection.close()
                served.keys.append(self.headers["Authorization"])
                status = served.fails.pop() if served.fails else 200
                if self.path == "/v1/completions" and served.lacks(asked):
                    status = 404
                served.requests.append(asked)
                body = (
                    served.answer(asked, self.path)
                    if status == 200
                    else {"error": {"message": f"no: {served.keys[-1]}"}}
                )
            served.waits.wait()
            content = served.changes(json.dumps(body)).encode()
            if served.sends is not None:
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client closes the connection
                    served.sends(self, content)
                return None
            return self.reply(content, status, {"retry-after-ms": "1"})

        def do_GET(self):
            if served.gets is not None:
                return served.gets(self)
            owner = "llamacpp" if served.kind.startswith("llama") else "somebody"
            return self.reply(json.dumps({"object": "list", "data": [{"id": "tiny", "owned_by": owner}]}).encode())

        def reply(self, content, status=200, headers=None):
            self.send_response(status)
            for name, value in (
                {"Content-Type": "application/json", "Content-Length": len(content)} | (headers or {})
            ).items():
                self.send_header(name, str(value))
            self.end_headers()
            return self.wfile.write(content)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served, f"openai:http://127.0.0.1:{server.server_port}/v1#tiny"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
