// Plays a story: draws requests, sends them, knows what each is to be answered, and compares.
//
// The requests that change weights reach them in the order in which they are sent, so the rules can
// go on before they are answered. A request whose place among others is not known (a label, a reset)
// is sent alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "orders/payloads.h"
#include "orders/rules.h"
#include "orders/story.h"

namespace syncline::orders {

// What a request may be answered.
enum class Answer : std::uint8_t { kSuccess, kRefusal, kAny };

class Player {
 public:
  Player(const World& world, Dice& dice, bool verbose);
  ~Player();
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;
  base::Status Play();

 private:
  using Label = std::optional<std::string>;
  using Move = base::Status (Player::*)();
  struct Sent {
    std::shared_ptr<Client> client;
    std::string what;
    Answer answer = Answer::kAny;
    bool may_be_refused = false;  // a generation: no whole version was there at some time
  };
  struct Chance {
    std::uint64_t weight;
    Move move;
  };
  static const std::vector<Chance>& Chances();

  base::Status Draw();
  // Sends; what it is answered is looked at by Settle.
  void Send(const std::string& target, std::string body, bool success);
  // Waits for all replies but those of generations.
  base::Status Settle();
  base::Status CheckReply(const Sent& sent);
  // Sends it when nothing else is being done, and waits.
  base::Result<http::Response> Alone(const std::string& method, const std::string& target,
                                     std::string body, Answer answer);
  base::Result<base::Json> Ask(const std::string& target);
  base::Status CheckState();
  base::Status CheckDigests();
  base::Status CheckServed();
  base::Status Collect();  // the replies of generations
  base::Status CheckGeneration(const Sent& sent);
  base::Status GenerateAlone();
  base::Status Heal();
  base::Status Quiesce();
  void NoteLost();
  void Say(const std::string& text) const;

  // Moves: updates.cc.
  base::Status Begin();
  base::Status End();
  base::Status PostProcess();
  base::Status Update();
  base::Status WrongUpdate();
  base::Status Unreadable();
  base::Status Disk();
  base::Status DiskAgain();
  base::Status BrokenDisk();
  base::Status Pull();
  base::Status DiskFromReplica();
  base::Status Relabel();
  base::Status UseGroup();
  // Moves: controls.cc.
  base::Status Reset();
  base::Status Snapshot();
  base::Status Compare();
  base::Status Pause();
  base::Status Continue();
  base::Status Flush();
  base::Status Abort();
  base::Status Generate();
  base::Status Read();
  base::Status Nonsense();

  // An update from tensors, and how it is sent.
  struct Draft {
    Message message;
    std::vector<tensor::TensorView> views;
    bool direct = false;  // by the engine's own names
    std::vector<std::byte> bytes;
  };
  Draft DrawTensors();
  Draft DrawDirect();
  base::Status SendUpdate(const Draft& draft);
  std::string Payload(const Draft& draft, base::Json::Object& body);
  base::Status SendEnd(const std::string& target, base::Json::Object body, bool abort);
  base::Status SendDisk(const std::string& path, const std::function<bool(Label)>& rules);
  // `rules`: what the request does, and whether it is a success. One that may find the memory of
  // paused requests in its way (`flush`) is sent alone; if it did, `refused` is called instead.
  base::Status Submit(
      const std::string& target, std::string body, bool flush, const std::function<bool()>& rules,
      const std::function<void()>& refused = [] {});
  Label MaybeLabel();

  const World& world_;
  Dice& dice_;
  const bool verbose_;
  Setting setting_;
  Rules rules_;
  SharedMemories memories_;
  std::unique_ptr<Server> server_;
  std::vector<Sent> sent_;
  std::vector<Sent> generations_;
  std::uint64_t count_ = 0;  // of labels and requests for generation
  bool paused_ = false;
  bool resident_ = false;  // requests may be paused in place
  bool was_lost_ = false;  // at some time since all requests were answered
  std::string replica_;
  std::optional<int> replica_version_;
};

}  // namespace syncline::orders
