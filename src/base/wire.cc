#include "base/wire.h"

namespace syncline::base {

// Not in the header: inlined into callers with constant sizes, g++ 12 warns of what cannot happen.
void WireWriter::Append(ByteSpan bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

}  // namespace syncline::base
