//! Encoding of values: integers are little-endian, and values of variable length follow their length.

/// A message that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct Malformed;

pub trait Value: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(input: &mut &[u8]) -> Result<Self, Malformed>;
}

/// Decodes a whole message. Trailing bytes are an error.
pub fn decode<T: Value>(mut input: &[u8]) -> Result<T, Malformed> {
    let value = T::take(&mut input)?;
    if input.is_empty() { Ok(value) } else { Err(Malformed) }
}

fn split<'a>(input: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, rest) = input.split_at_checked(length).ok_or(Malformed)?;
    *input = rest;
    Ok(taken)
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
                let bytes = split(input, size_of::<Self>())?;
                Ok(Self::from_le_bytes(bytes.try_into().map_err(|_| Malformed)?))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i32, i64);

impl Value for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

/// Bytes in any encoding: an argument, a path, or the name of a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bytes(pub Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl Value for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        let length = u32::take(input)? as usize;
        Ok(Self(split(input, length)?.to_vec()))
    }
}

impl<const N: usize> Value for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        split(input, N)?.try_into().map_err(|_| Malformed)
    }
}

impl<T: Value> Value for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        // The vector grows with the items that are present, not with the claimed length.
        let length = u32::take(input)?;
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(T::take(input)?);
        }
        Ok(items)
    }
}

impl<T: Value> Value for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        if bool::take(input)? { T::take(input).map(Some) } else { Ok(None) }
    }
}

impl<A: Value, B: Value> Value for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut &[u8]) -> Result<Self, Malformed> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

/// Defines messages: a struct is encoded as its fields in order, an enum as the number of its variant and the fields.
#[macro_export]
macro_rules! messages {
    () => {};
    (
        $(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)* }
        $($rest:tt)*
    ) => {
        $(#[$meta])* #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }
        impl $crate::codec::Value for $name {
            fn put(&self, _out: &mut Vec<u8>) {
                $(self.$field.put(_out);)*
            }
            fn take(_input: &mut &[u8]) -> Result<Self, $crate::codec::Malformed> {
                Ok(Self { $($field: $crate::codec::Value::take(_input)?,)* })
            }
        }
        $crate::messages! { $($rest)* }
    };
    (
        $(#[$meta:meta])* pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident { $($field:ident: $type:ty,)* } = $number:literal,)*
        }
        $($rest:tt)*
    ) => {
        $(#[$meta])* #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant { $($field: $type,)* },)* }
        impl $crate::codec::Value for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        out.push($number);
                        $($field.put(out);)*
                    })*
                }
            }
            fn take(input: &mut &[u8]) -> Result<Self, $crate::codec::Malformed> {
                match u8::take(input)? {
                    $($number => Ok(Self::$variant { $($field: $crate::codec::Value::take(input)?,)* }),)*
                    _ => Err($crate::codec::Malformed),
                }
            }
        }
        $crate::messages! { $($rest)* }
    };
}
