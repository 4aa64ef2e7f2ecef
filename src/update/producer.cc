#include "update/producer.h"

#include <utility>

#include "payload/payload.h"

namespace syncline::update {

using base::Code;
using base::Fail;
using base::Result;
using base::Status;

Result<Staged> RankProducer::Receive(const ProducerRequest& request) {
  socket_.reset();
  SYNCLINE_ASSIGN(auto socket,
                  transport::CheckpointSocket::Connect(request.endpoint, timeout_, &cancel_));
  Staged all;
  const auto load = [&](const payload::Batch& batch) -> Status {
    if (!request.refusal.empty()) return Fail(Code::kOutOfOrder, request.refusal);
    SYNCLINE_ASSIGN(const Staged one, weights_.Receive(request.selector, batch));
    all.tensors += one.tensors;
    all.skipped += one.skipped;
    all.bytes += one.bytes;
    all.in_place = all.in_place || one.in_place;
    return {};
  };
  SYNCLINE_TRY(socket->Receive(load));
  socket_ = std::move(socket);
  return all;
}

void RankProducer::Finish(const std::string& failure) {
  if (!socket_) return;
  socket_->Finish(failure.empty() ? Status() : Fail(Code::kOutOfOrder, failure));
  socket_.reset();
}

}  // namespace syncline::update
