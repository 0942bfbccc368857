//! Order of the fields of a struct. A schema sorts them by name, and the derived `Deserialize` knows their declaration.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::de::value::Error;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

/// The name of a type in the schema, and its fields in the order of their declaration.
pub(crate) type Declaration = (Cow<'static, str>, &'static [&'static str]);

/// Returns the declaration of a struct without flattened fields.
pub(crate) fn declaration<T: JsonSchema + for<'de> Deserialize<'de>>() -> Declaration {
    let mut fields: &'static [&'static str] = &[];
    // The probe refuses every value, after it has seen the names.
    let _: Result<T, Error> = T::deserialize(Probe(&mut fields));
    (T::schema_name(), fields)
}

/// A deserialiser that records the fields of a struct.
struct Probe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("no value"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::SyncParams;

    #[test]
    fn fields_are_in_the_order_of_their_declaration() {
        assert_eq!(declaration::<SyncParams>(), ("SyncParams".into(), &["command", "git", "cwd", "timeout"][..]));
    }
}
