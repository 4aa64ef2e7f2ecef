"""Twenty prompts of different kinds and lengths, for comparisons with the reference."""

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "Once upon a time there was a little girl who",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "A good night's sleep is important because",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The quick brown fox",
    "In 1969, humans first",
    "To make bread you need flour,",
    "SELECT name FROM users WHERE",
    "Photosynthesis is the process by which",
    "Question: Why is the sky blue?\nAnswer:",
    "The largest planet of our solar system",
    "She opened the door and",
    "import numpy as np\n\n",
    "Die Hauptstadt von Deutschland ist",
    "The opposite of hot is cold. The opposite of up is",
    "<|im_start|>user\nWhat is rain?<|im_end|>\n<|im_start|>assistant\n",
]
