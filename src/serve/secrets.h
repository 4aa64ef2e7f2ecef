// The keys of the engine: where they come from, and that they stay nowhere else.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "serve/options.h"
#include "serve/placement.h"

namespace syncline::serve {

// Puts the keys into `options.keys`: those of the command line, else of the files that it names,
// else of SYNCLINE_API_KEY and SYNCLINE_ADMIN_API_KEY (where they are not empty). A file holds one
// key and perhaps the end of its line. The password of TLS's key may come from
// SYNCLINE_SSL_KEYFILE_PASSWORD too.
//
// kInvalidArgument for a key that is empty, longer than 4096 bytes, or that a header cannot carry,
// and for two sources on the command line. No message holds any part of a key.
base::Status ReadKeys(base::FileSystem& files, const Environment& environment, Options& options);

// The command line without the options whose values are secrets: for processes that need none.
std::vector<std::string> WithoutSecrets(const std::vector<std::string>& arguments);

// Overwrites the values of those options where the kernel shows them to everybody (ps, /proc), and
// removes the variables of keys, so that programs which are started do not inherit them. Keys are
// visible until then; those of files and variables never are.
void HideSecrets(char** argv);

}  // namespace syncline::serve
