#include "engine/rank_messages.h"

#include "base/wire.h"

namespace syncline::engine {

std::vector<std::byte> EncodeBatch(const model::Batch& batch) {
  base::WireWriter writer;
  writer.PutArray(batch.tokens);
  writer.Put<std::uint64_t>(batch.sequences.size());
  for (const model::SequenceSlice& sequence : batch.sequences) {
    writer.Put(sequence.begin);
    writer.Put(sequence.length);
    writer.Put(sequence.context);
    writer.PutArray(sequence.blocks);
  }
  writer.PutArray(batch.logits_rows);
  writer.Put<std::uint8_t>(batch.experts ? 1 : 0);
  return std::move(writer).Take();
}

base::Result<model::Batch> DecodeBatch(base::ByteSpan bytes) {
  base::WireReader reader(bytes);
  model::Batch batch;
  batch.tokens = reader.TakeArray<std::int32_t>();
  const auto sequences = reader.Take<std::uint64_t>();
  if (sequences > bytes.size()) return base::Fail(base::Code::kCorrupt, "a batch is too short");
  for (std::uint64_t i = 0; i < sequences; ++i) {
    model::SequenceSlice& sequence = batch.sequences.emplace_back();
    sequence.begin = reader.Take<std::uint32_t>();
    sequence.length = reader.Take<std::uint32_t>();
    sequence.context = reader.Take<std::uint32_t>();
    sequence.blocks = reader.TakeArray<std::uint32_t>();
  }
  batch.logits_rows = reader.TakeArray<std::uint32_t>();
  batch.experts = reader.Take<std::uint8_t>() != 0;
  SYNCLINE_TRY(reader.status());
  return batch;
}

}  // namespace syncline::engine
