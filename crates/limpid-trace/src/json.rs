//! Numbers in JSON, which has none for NaN and the infinities.

use serde::{Serialize, Serializer};

/// Writes numbers, and the words "NaN", "inf" and "-inf" where JSON has no number.
///
/// # Errors
/// Those of `out`.
pub fn numbers<S: Serializer>(values: &[f32], out: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Written {
        Number(f32),
        Word(String),
    }
    out.collect_seq(
        values.iter().map(|v| if v.is_finite() { Written::Number(*v) } else { Written::Word(v.to_string()) }),
    )
}

/// Writes a number, or its word likewise.
///
/// # Errors
/// Those of `out`.
pub fn number<S: Serializer>(value: &(impl Copy + Into<f64>), out: S) -> Result<S::Ok, S::Error> {
    let value: f64 = (*value).into();
    if value.is_finite() { out.serialize_f64(value) } else { out.serialize_str(&value.to_string()) }
}
