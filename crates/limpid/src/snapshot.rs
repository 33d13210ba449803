//! A model as it is in the middle of its training.

use crate::backend::Backend;
use crate::checkpoint::adapter::merged;
use crate::config::Config;
use crate::error::Result;
use crate::model::{Model, Param};
use crate::tokenizer::Tokenizer;
use crate::train::Trainer;
use crate::{Lm, Machine};

/// A model of a trainer's weights, with its adapter merged in, that are copied.
pub(crate) fn snapshot(
    trainer: &Trainer,
    (config, tokenizer, template): (&Config, Option<Tokenizer>, Option<String>),
    machine: &Machine,
) -> Result<Lm> {
    let load = |model: &Model, backend: &mut dyn Backend| {
        let own = |param: &Param| trainer.model.param(&param.name).expect("they are one model");
        let values = |param: &Param| merged(&trainer.model, &*trainer.backend, own(param));
        model.params.iter().try_for_each(|p| Ok(backend.write(p.region, &values(p)?)?))
    };
    Lm::held(config.clone(), tokenizer, template, load, machine.clone())
}
