// A store in a bucket, or wherever else objects can be written one by one.
#pragma once

#include <memory>
#include <string>

#include "objects/object_store.h"
#include "store/sink.h"

namespace syncline::store {

// `work`: directory on a local disk for the files of a version before they are uploaded; made if
// missing, and locked: kLocked if another publisher works there. Empty: a folder of `$TMPDIR`
// (/tmp) that belongs to this user and store, and is removed at the end. What a publisher that died
// left there goes. There is no lock on the store: of two publishers the manifest of the first one
// stands, and the other's commit is kAlreadyExists. kIncompatible if it cannot be listed and
// written.
base::Result<std::unique_ptr<Sink>> OpenObjectSink(base::FileSystem& files,
                                                   std::unique_ptr<objects::ObjectStore> objects,
                                                   const std::string& work,
                                                   SinkUse use = SinkUse::kPublish);

}  // namespace syncline::store
