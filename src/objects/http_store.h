// The tree below a URL of an HTTP server, read-only.
#pragma once

#include <memory>

#include "objects/object_store.h"
#include "objects/url.h"

namespace syncline::objects {

std::unique_ptr<ObjectStore> OpenHttp(Url url, const Settings& settings);

}  // namespace syncline::objects
