// Objects as files of a local directory.
#pragma once

#include <memory>
#include <string>

#include "objects/object_store.h"

namespace syncline::objects {

// Names that begin with this are the store's own: its lock, and files not yet whole. They are no
// objects: not listed, not to be read or written.
inline constexpr std::string_view kOwnNames = ".syncline-objects-";

// `files` must outlive the store. url: as it is to be shown.
std::unique_ptr<ObjectStore> OpenDirectory(base::FileSystem& files, std::string url,
                                           std::string path);

}  // namespace syncline::objects
