//! Hashes that stay the same across restarts and versions of the compiler.

/// Returns the 64-bit FNV-1a hash: stable, unlike the standard library's hasher, and not for secrets.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A byte encoding of named lists of texts. Lengths precede names and texts, and counts precede lists, so that
/// different fields never have the same encoding.
#[derive(Debug, Default)]
pub(crate) struct Canonical(Vec<u8>);

impl Canonical {
    pub(crate) fn field<T: AsRef<str>>(&mut self, name: &str, values: impl IntoIterator<Item = T>) -> &mut Self {
        let values: Vec<T> = values.into_iter().collect();
        self.text(name);
        self.0.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| self.text(value.as_ref()));
        self
    }

    pub(crate) fn hash(&self) -> u64 {
        fnv1a(&self.0)
    }

    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_texts_and_fields_have_different_encodings() {
        let encoded = |fields: &[(&str, &[&str])]| {
            let mut encoding = Canonical::default();
            for (name, values) in fields {
                encoding.field(name, *values);
            }
            encoding.0
        };
        let all: [&[(&str, &[&str])]; 6] = [
            &[("a", &["bc"])],
            &[("a", &["b", "c"])],
            &[("ab", &["c"])],
            &[("a", &[]), ("bc", &[])],
            &[("a", &[""])],
            &[("a", &[])],
        ];
        for (index, fields) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| encoded(other) != encoded(fields)), "{fields:?}");
        }
    }
}
