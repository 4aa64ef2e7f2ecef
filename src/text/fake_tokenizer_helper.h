// For tests: a helper that follows the protocol of tokenizer_process.h, and misbehaves when asked.
#pragma once

#include <string_view>

namespace syncline::text {

// A Python program of the standard library alone. Its last argument, the model's directory, says
// how it starts. A text's tokens are its code points; the text itself may say what to do instead.
// "hang" makes a file beside the program (its name and ".hangs") before it hangs.
inline constexpr std::string_view kFakeTokenizerHelper = R"py(
import json, os, struct, sys, time

def write(data):
    while data:
        data = data[os.write(1, data):]

def send(message):
    data = json.dumps(message).encode()
    write(struct.pack("<I", len(data)) + data)

def read(count):
    data = b""
    while len(data) < count:
        part = os.read(0, min(count - len(data), 1 << 20))
        if not part:
            sys.exit(0)
        data += part
    return data

def receive():
    return json.loads(read(struct.unpack("<I", read(4))[0]))

start = sys.argv[-1]
if start == "error":
    send({"error": "there is no tokenizer.json"})
    sys.exit(1)
elif start == "exit":
    sys.exit(7)
elif start == "never ready":
    time.sleep(1000)
elif start == "not ready":
    send({"ready": False})
elif start == "slow":
    time.sleep(0.3)
send({"ready": True, "chat_template": True, "bos_token_id": None, "eos_token_id": 2})

while True:
    request = receive()
    number = request["id"]
    if request["op"] == "chat":
        text = json.dumps([request["messages"], request["options"]], separators=(",", ":"))
        reply = {"id": number, "text": text, "tokens": [[len(request["messages"])]]}
    else:
        bos = [1] if request["add_special_tokens"] else []
        reply = {"id": number, "tokens": [bos + [ord(c) for c in t] for t in request["texts"]]}
        first = request["texts"][0] if request["texts"] else ""
        if first == "hang":
            open(sys.argv[0] + ".hangs", "w").close()
            time.sleep(1000)
        elif first == "die":
            os._exit(3)
        elif first == "refuse":
            reply = {"id": number, "error": "the template says no"}
        elif first == "wrong id":
            reply["id"] += 1
        elif first == "no id":
            del reply["id"]
        elif first == "no tokens":
            del reply["tokens"]
        elif first == "wrong count":
            reply["tokens"].append([])
        elif first == "no list":
            reply["tokens"][0] = 5
        elif first == "negative":
            reply["tokens"][0][0] = -1
        elif first == "large":
            reply["tokens"][0][0] = 2**31
        elif first == "error is no text":
            reply = {"id": number, "error": 5}
        elif first == "twice":
            send(reply)
        elif first == "not JSON":
            write(b"\x04\0\0\0oops")
        elif first == "endless":
            write(b"\xff\xff\xff\xff")
        elif first == "print":
            write(b"Loading the tokenizer...\n")
        elif first == "deaf":
            os.close(0)
            send(reply)
            time.sleep(1000)
        elif first == "half":
            write(b"\x10\0\0\0{")
            os._exit(3)
    send(reply)
)py";

}  // namespace syncline::text
