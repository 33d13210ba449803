//! Parameters that are the same in every model.

use limpid::backend::Backend;
use limpid::model::Model;
use limpid::numeric::random;

/// Writes them: each from its name and place.
pub fn fill(model: &Model, backend: &mut dyn Backend) {
    for param in &model.params {
        let value = |i: usize| (random::normal(5, random::site(&param.name), i as u64) * 0.3) as f32;
        backend.write(param.region, &(0..param.region.len()).map(value).collect::<Vec<_>>()).unwrap();
    }
}
