"""A server in this process, over a tiny model: one forward for each text.

It is a completions server, or by ``kind`` one that has chat completions only (``chat``, and with ``prompt_logprobs``
``vllm``), or ignores ``echo`` and has chat completions, as old versions of ``llama-server`` (``llama``).
"""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class Served:
    """The requests to a test server, and switches for its answers.

    ``log_probs``: return the prompt's log-probabilities. ``fails``: statuses of the next requests. ``dies_after``:
    number of answers. ``shows``: the text of a token. ``writes``: generated texts by prompt. ``changes``: a function of
    an answer. ``waits``: seconds. ``sends``: a function of handler and body that writes the reply. ``slow``: such a
    function by path, of handler only.
    """

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.requests, self.keys, self.fails, self.slow = [], [], [], {}
        self.log_probs, self.dies_after, self.writes = True, None, lambda prompt: "Yes"
        self.changes, self.waits, self.sends = lambda content: content, threading.Event(), None
        self.kind, self.num_top = "completions", 20
        self.shows = lambda token: tokenizer.decode([token])
        self.waits.set()
        self.lock = threading.Lock()

    @torch.no_grad()
    def log_probs_of(self, ids):
        return self.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    def rendered(self, turns):
        begun = turns[-1]["role"] == "assistant"
        how = {"add_generation_prompt": not begun, "continue_final_message": begun}
        return self.tokenizer.apply_chat_template(turns, tokenize=False, **how)

    def echoed(self, asked):
        """The prompt and one more token."""
        ids = self.tokenizer(asked["prompt"])["input_ids"]
        log_probs = self.log_probs_of(ids)
        tokens = [self.shows(token) for token in [*ids, int(log_probs[-1].argmax())]]
        if not self.log_probs:
            return {"text": tokens[-1], "logprobs": None}, len(ids), 1
        values = [float(log_probs[place - 1, ids[place]]) for place in range(1, len(ids))]
        logprobs = {"tokens": tokens, "token_logprobs": [None, *values, -1.0]}
        return {"text": asked["prompt"] + tokens[-1], "logprobs": logprobs}, len(ids), 1

    def chat(self, asked):
        """The first token of an answer."""
        ids = self.tokenizer(self.rendered(asked["messages"]))["input_ids"]
        choice = {"message": {"role": "assistant", "content": "x"}}
        if asked.get("logprobs"):
            num_top = self.num_top if self.num_top > 20 else min(self.num_top, asked["top_logprobs"])
            best = self.log_probs_of(ids)[-1].topk(num_top)
            texts = [self.shows(token) for token in best.indices.tolist()]
            top = [
                {"token": text, "logprob": value, "bytes": list(text.encode())}
                for text, value in zip(texts, best.values.tolist(), strict=True)
            ]
            choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        return choice, len(ids), 1

    def prompt_log_probs(self, asked):
        """The log-probabilities of the prompt's tokens, as vLLM returns them."""
        ids = self.tokenizer(self.rendered(asked["messages"]))["input_ids"]
        log_probs = self.log_probs_of(ids)
        tokens = [
            {str(token): {"logprob": float(log_probs[place, token]), "rank": 1, "decoded_token": self.shows(token)}}
            for place, token in enumerate(ids[1:])
        ]
        return {"prompt_logprobs": [None, *tokens]}

    def generated(self, asked):
        if "prompt" in asked:
            logprobs = {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": []}]}
            return {"text": self.writes(asked["prompt"]), "logprobs": logprobs}, 3, 2
        text = self.writes(asked["messages"][0]["content"])
        return {"message": {"role": "assistant", "content": text}}, 3, 2

    def answer(self, asked):
        extra, is_chat = {}, self.kind != "completions" and "messages" in asked and asked.get("max_tokens") == 1
        if self.kind == "vllm" and "prompt_logprobs" in asked:
            extra = self.prompt_log_probs(asked)
        kind = (
            self.chat if is_chat
            else self.echoed if asked.get("echo") and self.kind != "llama"
            else self.generated
        )  # fmt: skip
        choice, num_read, num_written = kind(asked)
        usage = {"prompt_tokens": num_read, "completion_tokens": num_written, "total_tokens": num_read + num_written}
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
                if self.path == "/v1/completions" and served.kind in ("chat", "vllm"):
                    status = 404
                served.requests.append(asked)
                body = {"error": {"message": f"no: {served.keys[-1]}"}}
                if status == 200:
                    body = served.answer(asked)
            served.waits.wait()
            content = served.changes(json.dumps(body)).encode()
            if served.sends is None:
                return self.reply(content, status, {"retry-after-ms": "1"})
            self.close_connection = True
            return served.sends(self, content)

        def reply(self, content, status=200, headers=None):
            if self.path in served.slow:
                self.close_connection = True
                with contextlib.suppress(OSError):  # the client closes the connection
                    return served.slow[self.path](self)
            self.send_response(status)
            always = {"Content-Type": "application/json", "Content-Length": len(content)}
            for name, value in (always | (headers or {})).items():
                self.send_header(name, str(value))
            self.end_headers()
            return self.wfile.write(content)

        def log_message(self, *words):
            pass

    with listening(Handler) as port:
        yield served, f"openai:http://127.0.0.1:{port}/v1#tiny"


@contextlib.contextmanager
def listening(handler):
    """Start a server on a free port and yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
