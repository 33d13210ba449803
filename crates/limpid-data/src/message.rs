//! A message of a conversation, who speaks, and the forms in which files have conversations.

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The instructions before the conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// `system`, `user` or `assistant`.
    pub fn name(self) -> &'static str {
        ["system", "user", "assistant"][self as usize]
    }
}

/// What one speaker says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What.
    pub content: String,
}

/// The keys of each form of a conversation.
pub(super) const FORMS: [&[&str]; 4] =
    [&["messages"], &["conversations"], &["prompt", "completion"], &["instruction", "output"]];

/// Whether an object with these keys is a conversation.
pub(super) fn has_form(has: &dyn Fn(&str) -> bool) -> bool {
    FORMS.iter().any(|keys| keys.iter().all(|key| has(key)))
}
