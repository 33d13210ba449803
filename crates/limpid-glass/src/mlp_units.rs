//! What units of MLPs respond to ([`limpid::unit_places`]).

use crate::asked::{AskedFields, wrong};
use crate::{Glass, GlassError, Reserved, Result, Subject, stream};
use limpid::unit_places::{UnitContext, UnitPage, UnitPlaces, UnitText};
use limpid_base::budget::Budget;
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

/// The most units of a layer that are asked for at once.
const MOST: usize = 64;

/// What was found last, of which model and text; the memory of it.
pub(crate) struct KnownUnits {
    of: (String, UnitText),
    places: Arc<UnitPlaces>,
    _held: Reserved,
}

/// The text that is read: one that is given, or the built-in stories.
fn text(subject: &Subject, body: &AskedFields) -> Result<UnitText> {
    let tokenizer = subject.lm.tokenizer()?;
    match body.text("text")? {
        None => UnitText::stories(tokenizer).map_err(|error| {
            let expected = format!("given: the model's tokenizer cannot read the built-in stories ({error})");
            wrong("text", &expected, &Value::Null)
        }),
        Some("") => Err(GlassError::Empty),
        Some(given) => {
            let ids = tokenizer.encode(given).map_err(|error| GlassError::Prompt(Box::new(error.into())))?;
            Ok(UnitText::new("the text that you gave", ids))
        }
    }
}

impl Glass {
    /// Tells which text is read, then what some units of a layer respond to in it, until `tell` says `false`. `body` is
    /// `{"layer": L, "units": [U]}`, with `"text"` and `"model"`. Of one unit it also tells which tokens that one makes
    /// likelier and less likely where it responds most. For memory it waits as long as `wait` says; `work` is spent on
    /// reading.
    ///
    /// # Errors
    /// What [`GlassError`] says.
    pub fn units(
        &self,
        subjects: &[Subject],
        body: &Value,
        (wait, work): (&Budget, &Arc<Budget>),
        tell: &mut dyn FnMut(&str) -> bool,
    ) -> Result<()> {
        let body = AskedFields::read(body, &["layer", "units", "text", "model"])?;
        let subject = body.subject(subjects)?;
        let config = subject.lm.config();
        let layer = body.number("layer", config.n_layer.saturating_sub(1))?;
        let units = body.numbers("units", MOST)?;
        if units.is_empty() || units.iter().any(|unit| *unit >= config.d_ff) {
            let expected = format!("a list of units below {}", config.d_ff);
            return Err(wrong("units", &expected, body.get("units").unwrap_or(&Value::Null)));
        }
        let text = text(subject, &body)?;
        let start = json!({ "event": "start", "layer": layer, "text": text.name(), "tokens": text.len() });
        if !tell(&start.to_string()) {
            return Ok(());
        }
        let places = self.places(subject, text, (wait, work))?;
        let pages = units.iter().map(|unit| places.page(layer, *unit)).collect::<Result<Vec<_>, _>>()?;
        let mut told = pages.iter().map(|page| shown(subject, page)).collect::<Vec<Value>>();
        if let [page] = &pages[..] {
            let words = subject.lm.unit_writes(&places, page, work)?;
            let words_of = |all: &[(u32, f32)]| -> Vec<Value> {
                all.iter().map(|(id, by)| json!([id, stream::piece(subject, *id), by])).collect()
            };
            told[0]["raised"] = words_of(&words.raised).into();
            told[0]["lowered"] = words_of(&words.lowered).into();
        }
        tell(&json!({ "event": "done", "units": told }).to_string());
        Ok(())
    }

    /// What is known of all units.
    fn places(
        &self,
        subject: &Subject,
        text: UnitText,
        (wait, work): (&Budget, &Arc<Budget>),
    ) -> Result<Arc<UnitPlaces>> {
        let of = (format!("{}/{}", subject.fingerprint, subject.name), text);
        let known = || self.units.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = known().as_ref().filter(|last| last.of == of) {
            return Ok(last.places.clone());
        }
        known().take(); // its memory is for the next
        let held = self.reserve(subject.lm.unit_bytes(), wait)?;
        let places = Arc::new(subject.lm.unit_places(&of.1, work)?);
        *known() = Some(KnownUnits { of, places: places.clone(), _held: held });
        Ok(places)
    }
}

/// A unit as it is told.
fn shown(subject: &Subject, page: &UnitPage) -> Value {
    let context = |one: &UnitContext| {
        let words: Vec<String> = one.tokens.iter().map(|id| stream::piece(subject, *id)).collect();
        json!({ "tokens": words, "at": one.at, "position": one.position, "value": one.value })
    };
    let contexts: Vec<Value> = page.contexts.iter().map(context).collect();
    json!({ "unit": page.unit, "name": page.name(), "fires": page.fires, "contexts": contexts })
}
