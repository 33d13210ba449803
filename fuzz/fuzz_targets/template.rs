//! A chat template from a model's files.
#![no_main]
use limpid::data::chat::{Message, Role};
use limpid::data::template::{ChatTemplate, TemplateTokens};

libfuzzer_sys::fuzz_target!(|source: &str| {
    let asked = [Message { role: Role::User, content: "Hi".into() }];
    let _ = ChatTemplate::new(source, TemplateTokens::default()).and_then(|template| template.render(&asked, true));
});
