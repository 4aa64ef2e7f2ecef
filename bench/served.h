// A model that is served to nobody, and how long its updates take.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/wait_for.h"
#include "engine/engine.h"
#include "text/vocabulary.h"
#include "update/weights.h"
#include "update_cases.h"

namespace syncline::bench {

using Clock = std::chrono::steady_clock;

using base::WaitFor;

inline double SecondsOf(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Served {
 public:
  static base::Result<std::unique_ptr<Served>> Start(layout::Plan plan, std::uint64_t undo_memory) {
    auto served = std::unique_ptr<Served>(new Served());
    SYNCLINE_ASSIGN(BareModel model, BareModel::Create(std::move(plan)));
    served->model_ = std::make_unique<BareModel>(std::move(model));
    SYNCLINE_ASSIGN(served->engine_,
                    engine::Engine::Start({.kv_cache_bytes = 1 << 20}, *served->model_,
                                          served->vocabulary_, {}, "start"));
    served->weights_ = update::Weights::Create(base::FileSystem::Posix(), *served->engine_,
                                               *served->model_, {.undo_memory = undo_memory});
    return served;
  }
  ~Served() {
    if (engine_) engine_->Stop();
    weights_.reset();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  update::Weights& weights() { return *weights_; }

  // The update has changed something, and what is live is what was sent.
  base::Status CheckNew(const update::UpdateReport& report, const Weights& sent) {
    if (!report.unchanged) return CheckLive(*model_, sent);
    return base::Fail(base::Code::kInternal, "the weights were live already");
  }

 private:
  Served() = default;

  text::Vocabulary vocabulary_;
  std::unique_ptr<BareModel> model_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<update::Weights> weights_;
};

}  // namespace syncline::bench
