//! The protocol without sockets: one request at a time, answered in the thread that asks. A page that has the model
//! inside of it asks this, and gets what a server would send (`tests/server/local.rs`).

use crate::answer::Answer;
use crate::look::{GoneFlag, Look, query, told_type};
use crate::model::{ServedLease, ServedModel, seconds_since_1970};
use crate::openai::{self, Ask};
use crate::options::{ServeError, ServeOptions, ServedTraining};
use crate::refusal::{Refusal, Result};
use crate::routes::Endpoint;
use crate::{dispatch, embeddings, tokens};
use limpid::engine::{Engine, EngineEvent, EngineLimits, RequestId};
use limpid_glass::{Reply, decoded};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A part of an answer: first its head, then its body.
#[derive(Debug)]
pub enum Told {
    /// The status of HTTP, and the type of the body.
    Head(u16, &'static str),
    /// Some bytes of it.
    Piece(Vec<u8>),
}

/// Hears of an answer until it says `false`.
pub type Tell<'a> = dyn FnMut(Told) -> bool + 'a;

/// A model that answers requests in the thread that asks.
pub struct LocalServer {
    model: ServedLease,
    look: Option<Look>,
    /// None for a model that is only looked into.
    engine: Option<Engine>,
    limits: EngineLimits,
    /// Whether the model is being trained.
    trains: bool,
    answers: u64,
}

const JSON: &str = "application/json";

/// What continues texts, if the model does.
fn engine(model: &ServedModel, limits: &EngineLimits) -> Result<Option<Engine>, ServeError> {
    if !model.continues() {
        return Ok(None);
    }
    model.check()?;
    Ok(Some(model.engine(limits)?))
}

impl LocalServer {
    /// A model that is served so. Of the options, those for sockets, keys and the page mean nothing here.
    ///
    /// # Errors
    /// As [`Server`](crate::OpenPort::serve), if the model cannot be served.
    pub fn new(model: ServedModel, options: &ServeOptions) -> Result<LocalServer, ServeError> {
        let (limits, trains) = (options.engine, options.training.is_some());
        let engine = engine(&model, &limits)?;
        Ok(LocalServer {
            model: Arc::new(Arc::new(model)),
            look: Look::new(options),
            engine,
            limits,
            trains,
            answers: 0,
        })
    }

    /// Serves another checkpoint of the model from now on, which `training` goes on with if it does. What was asked of
    /// the one before can still be looked into.
    ///
    /// # Errors
    /// As [`LocalServer::new`]; then the one before stays.
    pub fn follow(&mut self, model: ServedModel, training: Option<ServedTraining>) -> Result<(), ServeError> {
        self.engine = engine(&model, &self.limits)?;
        self.model = Arc::new(Arc::new(model));
        self.trains = training.is_some();
        self.look.iter_mut().for_each(|look| look.follow(training.clone()));
        Ok(())
    }

    /// Answers a request: its method, its path with what follows `?`, its body.
    pub fn answer(&mut self, (method, target): (&str, &str), body: &[u8], tell: &mut Tell) {
        let mut begun = false;
        let done = self.answer_unless_it_fails((method, target), body, &mut |told| {
            begun = true;
            tell(told)
        });
        if let Err(refusal) = done
            && !begun
        {
            tell(Told::Head(refusal.status, JSON));
            tell(Told::Piece(refusal.body().to_string().into()));
        }
    }

    fn answer_unless_it_fails(&mut self, (method, target): (&str, &str), body: &[u8], tell: &mut Tell) -> Result<()> {
        let (path, asked) = target.split_once('?').unwrap_or((target, ""));
        let (route, rest) = dispatch::find(method, path)?;
        if !asked.is_empty() && route.endpoint != Endpoint::Look && !route.open {
            let name = asked.split(['=', '&']).next().unwrap_or_default();
            return Err(Refusal::unknown_parameter(&format!("?{name}"), None));
        }
        let gone = GoneFlag::default();
        let model = self.model.clone();
        let whole = |tell: &mut Tell, kind, bytes| {
            tell(Told::Head(200, kind));
            tell(Told::Piece(bytes));
            Ok(())
        };
        if let Some(read) = dispatch::reader(route.endpoint) {
            return whole(tell, JSON, read(&model, body)?.to_string().into());
        }
        let look = || self.look.as_ref().ok_or_else(Refusal::inspect_disabled);
        match route.endpoint {
            Endpoint::Health => whole(tell, JSON, json!({ "status": "ok" }).to_string().into()),
            Endpoint::Models => whole(tell, JSON, tokens::models(&model, self.trains).to_string().into()),
            Endpoint::Model => {
                whole(tell, JSON, tokens::model(&model, self.trains, &decoded(rest))?.to_string().into())
            }
            Endpoint::TokenizerInfo => whole(tell, JSON, tokens::tokenizer_info(&model)?.to_string().into()),
            Endpoint::Embeddings => {
                let vectors = embeddings::embeddings(&model, body, &|| gone.load(Ordering::Relaxed))?;
                whole(tell, JSON, vectors.to_string().into())
            }
            Endpoint::Look => match look()?.ask(&model, rest, &query(asked), &gone)? {
                Reply::Json(text) => whole(tell, JSON, text.into()),
                Reply::File(kind, _, bytes) => whole(tell, kind, bytes),
            },
            Endpoint::Forget => {
                look()?.forget(rest)?;
                whole(tell, JSON, "{}".into())
            }
            Endpoint::LookInto => {
                let kind = told_type(rest)?;
                let mut begun = false;
                look()?.tell(&model, (rest, body), &gone, &mut |piece| {
                    let heard = begun || tell(Told::Head(200, kind));
                    begun = true;
                    let heard = heard && tell(Told::Piece(piece));
                    gone.fetch_or(!heard, Ordering::Relaxed);
                    heard
                })
            }
            Endpoint::Chat => self.generate(openai::chat(&model, body)?, "chatcmpl", tell),
            Endpoint::Completions => self.generate(openai::completions(&model, body)?, "cmpl", tell),
            // what is about sockets, and the descriptions of all this
            _ => Err(Refusal::not_found(path)),
        }
    }

    /// What the engine makes of a request, as it comes or at once; `name` begins the answer's id.
    fn generate(&mut self, ask: Ask, name: &str, tell: &mut Tell) -> Result<()> {
        let (ask, _held) = match &self.look {
            Some(look) => look.resolve(&self.model, ask, &GoneFlag::default())?,
            None if ask.answer.interventions.is_some() => return Err(Refusal::inspect_disabled()),
            None => (ask, None),
        };
        let engine = self.engine.as_mut().ok_or_else(Refusal::looked_at_alone)?;
        self.answers += 1;
        let id = format!("{name}-{:016x}", self.answers);
        let mut answer = Answer::new(Arc::clone(&self.model), ask.answer, id, seconds_since_1970());
        if answer.streams() {
            tell(Told::Head(200, "text/event-stream"));
        }
        // what is told of the answer; whether anybody hears it
        let mut send = |payloads: Vec<String>| {
            let lines: String = payloads.iter().map(|payload| format!("data: {payload}\n\n")).collect();
            lines.is_empty() || tell(Told::Piece(lines.into()))
        };
        let mut heard = send(answer.begin());
        let mut choices = HashMap::new();
        for (choice, request) in ask.requests.into_iter().enumerate() {
            match engine.submit_nth(request, choice) {
                Ok(id) => drop(choices.insert(id, choice)),
                Err(error) => heard = heard && send(answer.take(choice, EngineEvent::Failed(error))),
            }
        }
        let mut tell_one = |id: RequestId, event| {
            if let Some(&choice) = choices.get(&id) {
                heard = heard && send(answer.take(choice, event));
            }
            heard
        };
        while engine.round(&mut tell_one).map_err(Refusal::engine_error)? {}
        if !answer.streams() {
            let whole = answer.whole()?;
            tell(Told::Head(200, JSON));
            tell(Told::Piece(whole.into()));
        }
        Ok(())
    }
}
