"""The wire schemas as public `.proto` text, and the descriptors that `protoc` made of them."""
