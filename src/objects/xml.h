// The XML that S3 speaks: elements and text, nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace syncline::objects {

struct XmlElement {
  std::string name;  // without a namespace prefix
  std::string text;  // of its own, entities decoded; only kept where it has no children
  std::vector<XmlElement> children;

  // The first child of that name; null if there is none.
  const XmlElement* Child(std::string_view child) const;
  std::string ChildText(std::string_view child) const;  // empty: none
};

// The root element. Attributes, comments and processing instructions are skipped. kCorrupt, with
// the offset, for what is not well formed, for a document type (so no entities but the five and
// character references), for elements nested deeper than 16 and for more than 100,000 of them.
base::Result<XmlElement> ParseXml(std::string_view text);

// For text inside an element.
std::string EscapeXml(std::string_view text);

}  // namespace syncline::objects
