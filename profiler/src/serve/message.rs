//! A writer of protobuf messages. Numbers of fields are the callers' matter.

use prost::encoding;

/// A message's fields so far.
#[derive(Default)]
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        encoding::encode_key(field, encoding::WireType::LengthDelimited, &mut self.0);
        encoding::encode_varint(value.len() as u64, &mut self.0);
        self.0.extend(value);
        self
    }

    pub(super) fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub(super) fn message(self, field: u32, inner: Self) -> Self {
        self.bytes(field, &inner.0)
    }

    pub(super) fn messages(self, field: u32, all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(self, |message, inner| message.message(field, inner))
    }

    pub(super) fn number(mut self, field: u32, value: u64) -> Self {
        encoding::uint64::encode(field, &value, &mut self.0);
        self
    }

    pub(super) fn numbers(mut self, field: u32, values: &[u64]) -> Self {
        encoding::uint64::encode_packed(field, values, &mut self.0);
        self
    }

    pub(super) fn fixed(mut self, field: u32, value: u64) -> Self {
        encoding::fixed64::encode(field, &value, &mut self.0);
        self
    }

    pub(super) fn signed(mut self, field: u32, value: i64) -> Self {
        encoding::sint64::encode(field, &value, &mut self.0);
        self
    }

    pub(super) fn double(mut self, field: u32, value: f64) -> Self {
        encoding::double::encode(field, &value, &mut self.0);
        self
    }
}
