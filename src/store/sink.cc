#include "store/sink.h"

#include <utility>

#include "store/directory_sink.h"
#include "store/object_sink.h"

namespace syncline::store {

SinkNames NamesOf(SinkUse use) {
  if (use == SinkUse::kFold) return {"fold.lock", "folding", "fold"};
  return {"publisher.lock", "staging", "publisher"};
}

base::Result<std::unique_ptr<Sink>> OpenSink(base::FileSystem& files, const std::string& store,
                                             const SinkOptions& options) {
  SYNCLINE_ASSIGN(std::unique_ptr<objects::ObjectStore> objects,
                  objects::Open(files, store, options.objects));
  if (!objects->local_path().empty()) {
    return OpenDirectorySink(files, objects->local_path(), options.durable, options.exclusive,
                             options.use);
  }
  return OpenObjectSink(files, std::move(objects), options.work_directory, options.use);
}

}  // namespace syncline::store
