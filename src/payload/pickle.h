// Python pickles read as data, protocols 2 to 5. Nothing is executed: a call or an object of one of
// the known classes (classes.h) becomes an Object that names the class and holds the arguments; an
// OrderedDict becomes a Dict.
//
// Refused are all opcodes but those that the picklers of CPython 3.8 and later use for such data:
// persistent ids, extension codes, out-of-band buffers, byte arrays, old text forms, keyword
// arguments, sets. Bytes pickled with protocol 2 come as calls of _codecs.encode and are refused
// by that name.
//
// Memory is bounded by the size of the message and by fixed limits: what is remembered and used
// again is the same value, not a copy, and a value may even hold itself. So do not walk a tree
// without knowing its shape.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "payload/classes.h"

namespace syncline::payload {

struct Value;
using Ref = const Value*;

struct Tuple {
  std::vector<Ref> items;
};
struct List {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;  // in the order written; a key may come twice
};
struct String {
  std::string_view text;  // UTF-8 as the sender says; not checked
};
struct Object {
  const PythonName* name = nullptr;
  const Tuple* arguments = nullptr;
  const Dict* state = nullptr;  // the fields, of classes whose objects are built
};

struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, String, base::ByteSpan, Tuple, List,
               Dict, const PythonName*, Object>
      is;

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&is);
  }
};

class Pickle {
 public:
  // Texts and bytes of the values point into `message`.
  //   kInvalidArgument  not such a pickle; what, and at which byte
  //   kLimitExceeded    too deep, or too many values
  static base::Result<Pickle> Read(base::ByteSpan message);

  const Value& root() const { return *root_; }
  // All values that were made, in that order, those inside of others too.
  const std::deque<Value>& values() const { return values_; }

 private:
  friend class PickleReader;

  std::deque<Value> values_;  // never moves a value
  Ref root_ = nullptr;
};

// "a list", "an object of torch.Tensor": what a value is, for errors.
std::string KindOf(const Value& value);

// The value under a text; null if there is none, or the dict has more than 64 items, as no object
// of ours has. The last one counts, as in Python.
Ref Find(const Dict& dict, std::string_view key);

}  // namespace syncline::payload
